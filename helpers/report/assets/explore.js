// Figures that answer to the mouse, from the tables embedded in the page; nothing is fetched and no kernel is asked.
(async () => {
  "use strict";
  const library = document.createElement("script");
  library.textContent = await window.workbook.decompressed(window.plotlyPacked).text();
  document.head.append(library);
  const data = await window.workbook.unpacked(document.getElementById("content"));
  const { models, columns, axes, curves } = data;
  const at = id => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const escaped = text => String(text).replace(/[&<>]/g, sign => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
  const axisNamed = name => axes.find(axis => axis.name === name);
  const config = { responsive: true, displaylogo: false, displayModeBar: true, scrollZoom: false, modeBarButtonsToRemove: ["sendChartToCloud", "toggleSpikelines"], toImageButtonOptions: { format: "svg" } };

  // Colours of the page for a figure without a ground of its own.
  const look = layout => {
    const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue(name).trim();
    const grid = { gridcolor: of("--line"), linecolor: of("--line"), zerolinecolor: of("--line"), automargin: true };
    const legend = { orientation: innerWidth < 700 ? "h" : "v", itemsizing: "constant", ...(innerWidth < 700 ? { y: -0.25 } : {}) };
    const base = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: of("--ink"), family: "system-ui, sans-serif" }, legend, modebar: { bgcolor: "rgba(0,0,0,0)", color: of("--quiet"), activecolor: of("--accent") } };
    const full = { ...base, margin: { l: 55, r: 15, t: 30, b: 45 }, hoverlabel: { align: "left" }, ...layout };
    for (const axis of ["xaxis", "yaxis"]) full[axis] = { ...grid, ...layout[axis] };
    return full;
  };

  // ---- numbers of a selection ----
  const pearson = (x, y) => {
    const n = x.length, mean = values => values.reduce((sum, value) => sum + value, 0) / n;
    const mx = mean(x), my = mean(y);
    let xy = 0, xx = 0, yy = 0;
    for (let i = 0; i < n; i++) { const a = x[i] - mx, b = y[i] - my; xy += a * b; xx += a * a; yy += b * b; }
    const scale = Math.sqrt(xx * yy);
    return scale > 1e-12 * (Math.abs(mx) + Math.sqrt(xx)) * (Math.abs(my) + Math.sqrt(yy)) ? Math.max(-1, Math.min(1, xy / scale)) : NaN;
  };
  const random = seed => () => { // mulberry32: the same selection has the same interval each time
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const bootstrap = (x, y, cells, draws = 1000) => {
    const groups = [...new Map(cells.map(cell => [cell, []])).entries()];
    const place = new Map(groups.map(([cell], i) => [cell, i]));
    cells.forEach((cell, i) => groups[place.get(cell)][1].push(i));
    if (groups.length < 8) return null;
    const next = random(1), found = [];
    for (let draw = 0; draw < draws; draw++) {
      const rows = [];
      for (let k = 0; k < groups.length; k++) rows.push(...groups[Math.floor(next() * groups.length)][1]);
      const r = pearson(rows.map(i => x[i]), rows.map(i => y[i]));
      if (Number.isFinite(r)) found.push(r);
    }
    if (found.length < 0.9 * draws) return null;
    found.sort((a, b) => a - b);
    const quantile = p => { const h = p * (found.length - 1), low = Math.floor(h); return found[low] + (h - low) * ((found[low + 1] ?? found[low]) - found[low]); };
    return [quantile(0.025), quantile(0.975)];
  };
  window.workbook = { pearson, bootstrap }; // for tests

  // ---- a measure against a target ----
  const plot = at("scatter");
  let chosen = null; // rows of the models selected by box or lasso; null when none is

  const passes = row => [...document.querySelectorAll("#levels input:not(:checked)")].every(box =>
    box.dataset.axis === "analysed" ? models.analysed[row] : axisNamed(box.dataset.axis).of[row] !== Number(box.value));
  const groupsOf = (rows, colour, symbol) => {
    const found = new Map();
    for (const row of rows) {
      const key = `${colour ? colour.of[row] : 0} ${symbol ? symbol.of[row] : 0}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(row);
    }
    return [...found.entries()].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
  };
  const drawScatter = () => {
    const x = columns[at("x").value], y = columns[at("y").value];
    const colour = axisNamed(at("colour").value), symbol = axisNamed(at("symbol").value);
    const log = { x: at("log-x").checked, y: at("log-y").checked };
    const fits = (value, logarithmic) => value !== null && (!logarithmic || value > 0);
    const asked = models.id.map((_, row) => row).filter(passes);
    const rows = asked.filter(row => fits(x.values[row], log.x) && fits(y.values[row], log.y));
    const traces = groupsOf(rows, colour, symbol).map(([key, own]) => {
      const [c, s] = key.split(" ").map(Number);
      const names = [colour?.levels[c], symbol && symbol !== colour ? symbol.levels[s] : undefined].filter(name => name !== undefined);
      const marker = { color: colour ? colour.colours[c] : "#0173b2", symbol: symbol ? symbol.symbols[s] : "circle", size: 10, opacity: 0.85, line: { width: 1, color: dark.matches ? "#15181d" : "#fff" } };
      return {
        type: "scatter", mode: "markers", name: escaped(names.join(" · ") || "models"), marker, customdata: own,
        x: own.map(row => x.values[row]), y: own.map(row => y.values[row]), text: own.map(row => models.hover[row]),
        hovertemplate: `%{text}<br>${escaped(x.title)}: %{x:.4g}<br>${escaped(y.title)}: %{y:.4g}<extra></extra>`,
      };
    });
    chosen = null;
    const title = text => ({ text: escaped(text) });
    const layout = look({
      xaxis: { title: title(x.title), type: log.x ? "log" : "linear" }, yaxis: { title: title(y.title), type: log.y ? "log" : "linear" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "select", showlegend: traces.length > 1, height: innerWidth < 700 ? 460 : 520,
    });
    const hidden = asked.length - rows.length;
    at("not-drawn").textContent = hidden ? `${hidden} of ${asked.length} models have no ${log.x || log.y ? "positive " : ""}value to draw here.` : "";
    return Plotly.react(plot, traces, layout, config).then(say);
  };
  const say = () => {
    const x = columns[at("x").value], y = columns[at("y").value];
    const seen = plot.data.filter(trace => trace.visible !== "legendonly").flatMap(trace => trace.customdata);
    const rows = chosen ? seen.filter(row => chosen.has(row)) : seen;
    const a = rows.map(row => x.values[row]), b = rows.map(row => y.values[row]), r = pearson(a, b);
    const cells = rows.map(row => models.cell[row]);
    // What the report's own table says of all models of the analysis is not said in another way here.
    const whole = models.id.map((_, row) => row).filter(row => models.analysed[row] && x.values[row] !== null && y.values[row] !== null);
    const asRanked = rows.length === whole.length && rows.every(row => models.analysed[row]);
    const ranked = asRanked ? x.intervals?.[y.name] ?? y.intervals?.[x.name] : undefined;
    const found = ranked ?? bootstrap(a, b, cells);
    const name = ranked ? "that of the table measures_ranking" : "percentiles of 1,000 draws of whole hyperparameter cells";
    const number = value => value.toFixed(2).replace("-", "−");
    const interval = found ? `95 % interval ${number(found[0])} to ${number(found[1])} (${name})` : "no interval below 8 hyperparameter cells";
    const what = chosen ? "selected" : "shown";
    at("said").textContent = Number.isFinite(r)
      ? `${rows.length} models ${what}, of ${new Set(cells).size} hyperparameter cells: Pearson r = ${number(r)}; ${interval}.`
      : `${rows.length} models ${what}: r is undefined, because ${rows.length < 2 ? "there are fewer than two" : "one of the two values is the same for all"}.`;
  };
  const card = row => {
    const rows = [["model", models.id[row]], ...axes.map(axis => [axis.title, axis.levels[axis.of[row]]]), ...columns.map(column => [column.title, column.values[row]])];
    at("card").replaceChildren(...rows.filter(([, value]) => value !== null).map(([name, value]) => {
      const line = document.createElement("tr");
      for (const text of [name, value]) line.insertCell().textContent = text;
      return line;
    }));
    at("picked").open = true;
  };

  // ---- parallel coordinates ----
  const drawParallel = () => {
    const rows = models.id.map((_, row) => row).filter(row => models.analysed[row] || !models.analysed.some(Boolean));
    const gap = columns.find(column => column.name === "gap");
    const next = random(7), spread = axes.map(() => rows.map(() => (next() - 0.5) * 0.3)); // so that equal levels do not hide one another
    const levels = axes.map((axis, k) => ({
      label: axis.title, values: rows.map((row, i) => axis.of[row] + spread[k][i]), tickvals: axis.levels.map((_, i) => i),
      ticktext: axis.levels.map(String), range: [-0.3, Math.max(1, axis.levels.length - 1) + 0.3],
    }));
    const numbers = [["train_accuracy", "training (%)"], ["test_accuracy", "test (%)"], ["gap", "gap (points)"]]
      .map(([name, label]) => [columns.find(column => column.name === name), label]).filter(([column]) => column)
      .map(([column, label]) => ({ label, values: rows.map(row => column.values[row]) }));
    const line = { color: rows.map(row => gap.values[row]), colorscale: dark.matches ? [[0, "#56b4e9"], [0.5, "#8d939c"], [1, "#ffb000"]] : [[0, "#0173b2"], [0.5, "#9a9a9a"], [1, "#c25400"]], showscale: false };
    at("parallel").style.minWidth = `${92 * (levels.length + numbers.length)}px`; // narrower, the names of the axes would run together
    const layout = look({ height: 430, margin: { l: 80, r: 60, t: 60, b: 30 } });
    return Plotly.react(at("parallel"), [{ type: "parcoords", dimensions: [...levels, ...numbers], line, labelangle: 0 }], layout, { ...config, displayModeBar: false });
  };

  // ---- training curves ----
  const smoothed = (values, weight) => { // exponential mean, corrected for its start at zero
    let last = 0, count = 0;
    return values.map(value => { if (value === null) return null; last = weight * last + (1 - weight) * value; return last / (1 - weight ** ++count); });
  };
  const drawCurves = () => {
    const metric = at("metric").value, weight = Number(at("smoothing").value), axis = curves.axes.find(item => item.name === at("curve-colour").value);
    const ticked = new Set([...document.querySelectorAll("#runs input:checked")].map(box => Number(box.value)));
    const seen = new Set(), traces = [];
    curves.runs.forEach((run, place) => {
      if (!ticked.has(place)) return;
      const level = axis ? run.levels[axis.name] : "", colour = axis ? axis.marks[level][0] : "#0173b2";
      const raw = run.values[metric], shared = { type: "scatter", mode: "lines", x: run.epochs, legendgroup: level };
      if (weight > 0) traces.push({ ...shared, y: raw, line: { color: colour, width: 1 }, opacity: 0.25, hoverinfo: "skip", showlegend: false });
      traces.push({ ...shared, y: weight > 0 ? smoothed(raw, weight) : raw, line: { color: colour, width: 1.8 }, opacity: 0.85, name: escaped(level || "runs"), showlegend: !seen.has(level),
        hovertemplate: `${escaped(run.id)}<br>epoch %{x}: %{y:.4g}<extra></extra>` });
      seen.add(level);
    });
    const layout = look({ xaxis: { title: { text: "epoch" } }, yaxis: { title: { text: curves.metrics[metric] } }, height: innerWidth < 700 ? 420 : 480, showlegend: seen.size > 1 });
    at("curves-said").textContent = `${ticked.size} of ${curves.runs.length} runs${weight > 0 ? `; smoothed by an exponential mean of weight ${weight}, the measured values thin` : ""}.`;
    return Plotly.react(at("curves"), traces, layout, config);
  };

  // ---- controls ----
  document.querySelectorAll("#scatter-controls select, #scatter-controls input, #levels input").forEach(control => control.addEventListener("change", drawScatter));
  drawScatter().then(() => {
    plot.on("plotly_selected", event => { chosen = event?.range || event?.lassoPoints ? new Set(event.points.map(point => point.customdata)) : null; say(); });
    plot.on("plotly_deselect", () => { chosen = null; say(); });
    plot.on("plotly_restyle", say);
    plot.on("plotly_click", event => card(event.points[0].customdata));
  });
  const late = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
    late.unobserve(entry.target);
    (entry.target.id === "parallel" ? drawParallel : drawCurves)();
  }), { rootMargin: "200px" });
  if (axes.length) late.observe(at("parallel"));
  if (curves) {
    late.observe(at("curves"));
    document.querySelectorAll("#curve-controls select, #runs input").forEach(control => control.addEventListener("change", drawCurves));
    at("smoothing").addEventListener("input", drawCurves);
    for (const [id, value] of [["all-runs", true], ["no-runs", false]]) {
      at(id).addEventListener("click", () => { document.querySelectorAll("#runs input").forEach(box => { box.checked = value; }); drawCurves(); });
    }
  }
  dark.addEventListener("change", () => { drawScatter(); if (at("parallel")?.data) drawParallel(); if (at("curves")?.data) drawCurves(); });
})();
