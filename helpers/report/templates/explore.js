// One explorer: controls, what they draw, and the card of the network that was clicked; for explore.html and for JupyterLab alike.
// explorer(place, content, Plotly) draws content, which helpers/report/explore/content.py makes.
const element = (tag, given = {}, ...inside) => { const made = Object.assign(document.createElement(tag), given); made.append(...inside); return made; };
const chosen = (title, options, changed, start = options[0][0]) => {
  const list = element("select", { onchange: changed }, ...options.map(([value, text]) => element("option", { value, textContent: text })));
  list.value = start;
  return [element("label", {}, title, list), () => list.value];
};
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches && !document.body.dataset.jpThemeLight?.includes("true");
const two = value => (Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(2))));

function correlation(x, y) {
  const mean = list => list.reduce((sum, value) => sum + value, 0) / list.length, [mx, my] = [mean(x), mean(y)];
  const product = (a, ma, b, mb) => a.reduce((sum, value, i) => sum + (value - ma) * (b[i] - mb), 0);
  return product(x, mx, y, my) / Math.sqrt(product(x, mx, x, mx) * product(y, my, y, my));
}

function explorer(place, content, Plotly) {
  const models = content.models ?? [];
  if (!models.length) return;
  const [controls, said, plot, card] = [element("div", { className: "controls" }), element("p", { className: "said", role: "status" }), element("div", { className: "plot" }), element("dl", { className: "card" })];
  card.append(element("div", { className: "wide", textContent: "A click on a point shows its network here." }));
  const show = model => card.replaceChildren(...Object.entries(model.card).map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
  // Draws traces in a box of fixed height, and shows the network whose place a clicked point carries.
  const drawn = (traces, x, y) => {
    const [ink, lines] = dark() ? ["#e6e6e6", "#424a56"] : ["#1b1b1b", "#d9dde3"];
    const axis = text => ({ title: { text, standoff: 8 }, automargin: true, gridcolor: lines, zerolinecolor: lines, linecolor: lines });
    const layout = { height: 460, margin: { l: 60, r: 15, t: 10, b: 50 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 13 }, hovermode: "closest", hoverlabel: { align: "left" }, legend: { orientation: "h", y: -0.2, yanchor: "top" }, xaxis: axis(x), yaxis: axis(y) };
    const first = !plot.on;
    Plotly.react(plot, traces, layout, { responsive: true, displayModeBar: false });
    if (first) plot.on("plotly_click", ({ points }) => show(models[[points[0].customdata].flat()[0]]));
  };
  const byKind = (kept, x) => content.kinds.map(([kind, color]) => {
    const own = kept.filter(i => models[i].kind === kind);
    return { type: "scatter", mode: "markers", name: kind, marker: { color, size: 10, opacity: 0.85 }, x: own.map(x), y: own.map(i => models[i].gap), customdata: own, text: own.map(i => models[i].hover), hovertemplate: "%{text}<br>%{x:.2~g}: gap %{y:.1f} points<extra></extra>" };
  });
  const filters = (content.axes ?? []).map(axis => ({ axis, list: chosen(axis.title, [["", "all"], ...axis.levels.map(level => [level, level])], () => draw(), axis.start) }));
  const kept = (known = () => true) => models.map((_, i) => i).filter(i => known(i) && filters.every(({ axis, list }) => !list[1]() || axis.of[i] === list[1]()));
  // Draws a value of each network against its gap, and says how they correlate.
  const relate = (title, x) => {
    const shown = kept(i => x(i) !== null && models[i].gap !== null);
    said.textContent = `${title} and the gap: r = ${two(correlation(shown.map(x), shown.map(i => models[i].gap)))}, ${shown.length} of ${models.length} networks.`;
    drawn(byKind(shown, x), title, "generalization gap (points)");
  };
  let draw = () => {};

  if (content.kind === "measures") {
    const [list, measure] = chosen("measure", content.measures.map((one, place) => [place, one.title]), () => draw());
    controls.append(list, ...filters.map(one => one.list[0]));
    draw = () => {
      const { title, values } = content.measures[measure()];
      relate(title, i => values[i]);
    };
  } else if (content.kind === "curves") {
    const [list, metric] = chosen("measured", content.metrics, () => draw());
    controls.append(list, ...filters.map(one => one.list[0]));
    draw = () => {
      const shown = kept(), colours = Object.fromEntries(content.kinds), seen = new Set();
      said.textContent = `${shown.length} of ${models.length} runs; a click on an entry of the legend hides its kind.`;
      drawn(shown.map(i => {
        const { kind, epochs, curves, hover } = models[i], showlegend = !seen.has(kind);
        seen.add(kind);
        return { type: "scatter", mode: "lines", name: kind, legendgroup: kind, showlegend, line: { color: colours[kind], width: 1.3 }, x: epochs, y: curves[metric()], customdata: epochs.map(() => i), hovertemplate: `${hover}<br>epoch %{x}: %{y:.2~g}<extra></extra>` };
      }), "epoch", Object.fromEntries(content.metrics)[metric()]);
    };
  } else {
    draw = gallery(content, controls, relate);
    controls.append(...filters.map(one => one.list[0]));
  }
  place.append(controls, ...(content.kind === "maps" ? [content.pictures] : []), said, plot, card);
  draw();
}

// Where networks look: pictures with the mask and the box, and the overlap of all networks by the same rule of cutting.
function gallery(content, controls, relate) {
  const { models, images, size, side, cuts } = content;
  const rules = [...new Set(cuts.map(cut => cut.rule))], of = rule => cuts.filter(cut => cut.rule === rule);
  const thresholds = of("threshold").map(cut => cut.threshold);
  let draw;
  const [ruleList, rule] = chosen("the map is cut", rules.map(name => [name, content.rules[name]]), () => draw());
  const slider = element("input", { type: "range", min: 0, max: thresholds.length - 1, value: thresholds.indexOf(content.threshold), oninput: () => draw() });
  const level = element("output"), offered = models.map((model, i) => [i, `${model.name} (gap ${model.gap.toFixed(0)})`]);
  const networks = [0, models.length - 1].map((start, place) => chosen(`${["upper", "lower"][place]} row`, offered, () => draw(), start));
  controls.append(ruleList, element("label", {}, "threshold ", level, slider), ...networks.map(one => one[0]));
  content.pictures = element("div", { className: "pictures" });
  const photographs = images.map(({ src }) => Object.assign(new Image(), { src, onload: () => draw?.() }));
  const boxes = images.map(({ boxes }) => { const inside = new Uint8Array(size * size); for (const [x0, y0, x1, y1] of boxes) for (let y = y0; y < y1; y++) inside.fill(1, y * size + x0, y * size + x1); return inside; });
  const bytes = models.map(({ maps }) => Uint8Array.from(atob(maps), letter => letter.charCodeAt(0)));
  // The map of an image enlarged bilinearly with aligned edges, as helpers.cams.overlap does.
  const enlarged = (model, image) => {
    const [h, w] = side, map = bytes[model].subarray(image * h * w, (image + 1) * h * w), values = new Float32Array(size * size);
    const at = (place, length) => { const p = Math.max(0, ((place + 0.5) * length) / size - 0.5), low = Math.floor(p); return [low, Math.min(low + 1, length - 1), p - low]; };
    for (let y = 0; y < size; y++) for (let x = 0, [y0, y1, b] = at(y, h); x < size; x++) {
      const [x0, x1, a] = at(x, w), row = r => map[r * w + x0] * (1 - a) + map[r * w + x1] * a;
      values[y * size + x] = (row(y0) * (1 - b) + row(y1) * b) / 255;
    }
    return values;
  };
  const masked = (values, inside) => {
    if (rule() === "threshold") return values.map(value => value >= thresholds[slider.value]);
    const ordered = values.slice().sort().reverse(), area = inside.reduce((sum, one) => sum + one, 0);
    return values.map(value => value >= ordered[rule() === "maximum" ? 0 : Math.max(0, area - 1)]);
  };
  const picture = (model, image) => {
    const values = enlarged(model, image), mask = masked(values, boxes[image]), canvas = element("canvas", { width: size, height: size }), paper = canvas.getContext("2d");
    if (photographs[image].complete) paper.drawImage(photographs[image], 0, 0, size, size);
    const pixels = paper.getImageData(0, 0, size, size);
    mask.forEach((on, i) => { if (!on) for (let c = 0; c < 3; c++) pixels.data[4 * i + c] *= 0.35; });
    paper.putImageData(pixels, 0, 0);
    paper.strokeStyle = "#ffd400";
    for (const [x0, y0, x1, y1] of images[image].boxes) paper.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
    const both = mask.reduce((sum, on, i) => sum + (on && boxes[image][i]), 0), any = mask.reduce((sum, on, i) => sum + (on || boxes[image][i]), 0);
    return element("figure", {}, canvas, element("figcaption", { textContent: `${images[image].label}${models[model].right[image] ? "" : " ✗"} ${rule() === "maximum" ? (both ? "inside" : "outside") : (both / any).toFixed(2)}` }));
  };
  return draw = () => {
    slider.disabled = rule() !== "threshold";
    level.textContent = slider.disabled ? "" : thresholds[slider.value];
    content.pictures.replaceChildren(...networks.map(one => element("div", {}, ...images.map((_, image) => picture(Number(one[1]()), image)))));
    const cut = rule() === "threshold" ? of("threshold")[slider.value] : of(rule())[0];
    relate(content.titles[rule()], i => cut.means[i]);
  };
}
