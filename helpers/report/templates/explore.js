// explorer(place, content, Plotly): controls, what they draw, and the card of the network that was clicked; on explore.html and in
// JupyterLab alike. Content is made by helpers/report/explore/content.py.
const element = (tag, given = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), given);
  made.append(...inside);
  return made;
};
// A list to choose from: what to show, and a function that gives the chosen value.
const choice = (title, options, changed, start = options[0][0]) => {
  const list = element("select", { onchange: changed }, ...options.map(([value, text]) => element("option", { value, textContent: text })));
  list.value = start;
  return [element("label", {}, title, list), () => list.value];
};
const sum = (list, of = value => value) => list.reduce((total, value, place) => total + of(value, place), 0);
function correlation(x, y) {
  const [mx, my] = [sum(x) / x.length, sum(y) / y.length];
  const product = (a, ma, b, mb) => sum(a, (value, place) => (value - ma) * (b[place] - mb));
  return product(x, mx, y, my) / Math.sqrt(product(x, mx, x, mx) * product(y, my, y, my));
}

// What is left of values once a line through others is taken off.
function residuals(values, others) {
  const [mean, middle] = [sum(values) / values.length, sum(others) / others.length];
  const spread = sum(others, one => (one - middle) ** 2);
  const slope = spread ? sum(others, (one, i) => (one - middle) * (values[i] - mean)) / spread : 0;
  return values.map((value, i) => value - mean - slope * (others[i] - middle));
}
// Networks that have both values, and the two lists that are drawn and correlated; a target with `given` is held at equal values of it.
function pairs(places, x, target) {
  const shown = places.filter(i => x(i) !== null && target.values[i] !== null);
  const lists = [shown.map(x), shown.map(i => target.values[i])];
  if (!target.given) return [shown, ...lists];
  const given = shown.map(i => target.given[i]);
  return [shown, ...lists.map(list => residuals(list, given))];
}

// Shapes of points and dashes of lines, by the number of the architecture.
const SYMBOLS = ["circle", "x", "square", "diamond", "triangle-up", "cross"], DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const GREY = "#8a8f98", LINE = 17; // LINE: pixels from one name to the next
const median = list => list.slice().sort((a, b) => a - b)[Math.floor(list.length / 2)];

// Names right of a plot at the heights of what they name; those that would overlap are moved apart.
function namesAtRight(named, [low, high], height) {
  const pixels = value => ((value - low) / (high - low)) * height;
  const names = named.map(([name, color, value]) => ({ name, color, at: pixels(value) })).sort((a, b) => a.at - b.at);
  for (let round = 0; round < 100; round++) {
    for (let i = 1; i < names.length; i++) {
      const lacking = Math.max(0, LINE - (names[i].at - names[i - 1].at)) / 2;
      names[i - 1].at -= lacking;
      names[i].at += lacking;
    }
  }
  return names.map(({ name, color, at }) => ({ text: name, font: { color, size: 13 }, xref: "paper", x: 1, xanchor: "left", xshift: 8,
    yref: "paper", y: at / height, yanchor: "middle", showarrow: false }));
}

function explorer(place, content, Plotly) {
  const { models, targets, architectures } = content;
  const parts = ["controls", "pictures", "said", "plot", "curve", "card"].map(className => element("div", { className }));
  const [controls, pictures, said, plot, curve, card] = parts;
  if (!models.length) return;
  card.append(element("p", { textContent: "A click on a point shows its network here." }));
  const levels = axis => [["", "all"], ...axis.levels.map(level => [level, level])];
  const filters = content.axes.map(axis => [axis, ...choice(axis.title, levels(axis), () => draw(), axis.start)]);
  const kept = () => models.map((_, i) => i).filter(i => filters.every(([axis, , level]) => !level() || axis.of[i] === level()));
  const [againstList, against] = choice("against", targets.map(({ title }, at) => [at, title]), () => draw());
  // Draws traces in a box of fixed height; points of the first box carry the places of networks.
  const drawn = (box, traces, x, y, height, more = {}) => {
    const lab = place.closest("[data-jp-theme-light]")?.dataset.jpThemeLight;
    const light = lab ? lab === "true" : (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) !== "dark";
    const [ink, grid] = light ? ["#1b1b1b", "#d9dde3"] : ["#e6e6e6", "#424a56"], clear = "rgba(0,0,0,0)", first = !box.on;
    const axis = text => ({ title: { text, standoff: 8 }, automargin: true, gridcolor: grid, zerolinecolor: grid, linecolor: grid });
    const layout = { height, margin: { l: 60, r: more.right ?? 15, t: 10, b: 50 }, paper_bgcolor: clear, plot_bgcolor: clear,
      font: { color: ink, size: 13 }, hovermode: "closest", legend: { orientation: "h", y: -90 / height, yanchor: "top" }, xaxis: axis(x),
      yaxis: { ...axis(y), ...more.yaxis }, shapes: more.shapes ?? [], annotations: more.annotations ?? [] };
    Plotly.react(box, traces, layout, { responsive: true, displayModeBar: false });
    if (first && box === plot) box.on("plotly_click", ({ points }) => card.replaceChildren(...Object.entries(models[points[0].customdata].card)
      .map(([name, value]) => element("div", {}, element("b", { textContent: name }), ` ${value}`))));
  };
  // Draws networks by kind of training: its name stands beside its points or lines, on a narrow screen in a legend.
  const byKind = (traces, heights, x, y) => {
    const isWide = plot.clientWidth >= 700, mode = traces[0]?.mode ?? "markers";
    const marks = architectures.length < 2 ? [] : architectures.map((name, at) => ({ type: "scatter", mode, name, x: [null], y: [null],
      marker: { color: GREY, symbol: SYMBOLS[at % 6], size: 10 }, line: { color: GREY, dash: DASHES[at % 6] }, hoverinfo: "skip" }));
    const values = traces.flatMap(one => one.y).filter(value => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)], pad = 0.06 * (high - low || 1), range = [low - pad, high + pad];
    const named = content.kinds.filter(([kind]) => heights[kind]?.length).map(([kind, color]) => [kind, color, median(heights[kind])]);
    const longest = Math.max(0, ...named.map(([kind]) => kind.length));
    const beside = isWide ? { right: 25 + 7.5 * longest, annotations: namesAtRight(named, range, 400) } : {};
    const shown = traces.map(one => ({ ...one, showlegend: !isWide && one.showlegend }));
    drawn(plot, [...shown, ...marks], x, y, 460, { ...beside, yaxis: { range } });
  };
  // Draws a value of each network against the chosen target, by kind of training, and says how they correlate.
  const relate = (title, x) => {
    const target = targets[against()], [shown, xs, ys] = pairs(kept(), x, target);
    said.textContent = `${title} and ${target.title}: r = ${correlation(xs, ys).toFixed(2)}, ${shown.length} of ${models.length} networks.`;
    const heights = {};
    const traces = content.kinds.map(([kind, color]) => {
      const own = shown.map((_, at) => at).filter(at => models[shown[at]].kind === kind), y = own.map(at => ys[at]);
      const symbol = own.map(at => SYMBOLS[architectures.indexOf(models[shown[at]].architecture) % 6]);
      heights[kind] = y;
      return { type: "scatter", mode: "markers", name: kind, marker: { color, symbol, size: 10, opacity: 0.85 }, x: own.map(at => xs[at]),
        y, customdata: own.map(at => shown[at]), text: own.map(at => models[shown[at]].name), showlegend: own.length > 0,
        hovertemplate: "%{text}<br>%{x:.2~g}, %{y:.1f}<extra></extra>" };
    });
    byKind(traces, heights, title + (target.given ? ", less what training accuracy predicts" : ""), target.title);
  };
  // Draws r of quantities with the chosen target at every threshold, and marks the one that is set.
  const sweep = (quantities, thresholds, threshold) => {
    const target = targets[against()], shown = kept();
    const r = row => { const [, xs, ys] = pairs(shown, i => row[i], target); return correlation(xs, ys); };
    drawn(curve, quantities.map(({ title, values }, at) => ({ type: "scatter", mode: "lines+markers", name: title, x: thresholds,
      y: values.map(r), line: { color: GREY, dash: DASHES[at] }, hovertemplate: "threshold %{x}: r = %{y:.2f}<extra></extra>" })), "threshold", `r with ${target.title.replace(/ \(.*/, "")}`, 320,
      { yaxis: { range: [-1.05, 1.05] }, shapes: [{ type: "line", x0: threshold, x1: threshold, yref: "paper", y0: 0, y1: 1, line: { dash: "dot", width: 1 } }] });
  };
  let draw;
  if (content.kind === "maps") draw = gallery(content, controls, pictures, relate, sweep, kept(), () => draw());
  else {
    const [list, chosen] = choice("measure", content.measures.map((one, at) => [at, one.title]), () => draw());
    controls.append(list);
    draw = () => relate(content.measures[chosen()].title, i => content.measures[chosen()].values[i]);
  }
  controls.append(againstList);
  controls.append(...filters.map(([, list]) => list));
  place.append(...parts);
  draw();
}

// Where networks look: pictures with the mask and the box, and a measure of all networks whose maps are cut alike.
function gallery({ models, images, size, side, quantities, thresholds, threshold, scored }, controls, pictures, relate, sweep, first, redraw) {
  const cell = side[0] * side[1];
  const [quantityList, quantity] = choice("measure", quantities.map(({ title }, at) => [at, title]), redraw);
  const slider = element("input", { type: "range", min: 0, max: thresholds.length - 1, oninput: redraw }), level = element("output");
  slider.value = thresholds.indexOf(threshold);
  const offered = models.map((model, i) => [i, `gap ${model.gap.toFixed(0)}: ${model.name}`]);
  const rows = ["upper row", "lower row"].map((title, at) => choice(title, offered, redraw, first.at(-at) ?? 0));
  controls.append(quantityList, element("label", {}, "threshold ", level, slider), ...rows.map(([list]) => list));
  const photographs = images.map(({ src }) => Object.assign(new Image(), { src: `data:image/jpeg;base64,${src}`, onload: redraw }));
  const insides = images.map(({ boxes }) => {
    const inside = new Uint8Array(size * size);
    for (const [x0, y0, x1, y1] of boxes) for (let y = y0; y < y1; y++) inside.fill(1, y * size + x0, y * size + x1);
    return inside;
  });
  const bytes = models.map(({ maps }) => Uint8Array.from(atob(maps), letter => letter.charCodeAt(0)));
  // A map enlarged bilinearly with aligned edges, as helpers.cams.localize does: where each pixel lies between the cells.
  const between = length => Array.from({ length: size }, (_, i) => Math.max(0, ((i + 0.5) * length) / size - 0.5))
    .map(at => [Math.floor(at), Math.min(Math.floor(at) + 1, length - 1), at % 1]);
  const [down, across] = side.map(between);
  const enlarged = map => Float32Array.from({ length: size * size }, (_, i) => {
    const [y0, y1, b] = down[Math.floor(i / size)], [x0, x1, a] = across[i % size];
    const row = y => map[y * side[1] + x0] * (1 - a) + map[y * side[1] + x1] * a;
    return (row(y0) * (1 - b) + row(y1) * b) / 255;
  });
  const picture = (model, image) => {
    const inside = insides[image], values = enlarged(bytes[model].subarray(image * cell, (image + 1) * cell));
    const mask = values.map(value => value >= thresholds[slider.value]), canvas = element("canvas", { width: size, height: size }), paper = canvas.getContext("2d");
    if (photographs[image].complete) paper.drawImage(photographs[image], 0, 0, size, size);
    const pixels = paper.getImageData(0, 0, size, size);
    mask.forEach((on, i) => { for (let colour = 0; colour < 3 && !on; colour++) pixels.data[4 * i + colour] *= 0.35; });
    paper.putImageData(pixels, 0, 0);
    paper.strokeStyle = "#ffd400";
    for (const [x0, y0, x1, y1] of images[image].boxes) paper.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
    const both = sum(mask, (on, i) => on * inside[i]), overlap = both / (sum(mask) + sum(inside) - both);
    const wrong = models[model].right[image] ? "" : " ✗";
    return element("figure", {}, canvas, element("figcaption", { textContent: `${overlap.toFixed(2)} ${images[image].label}${wrong}` }));
  };
  return () => {
    level.textContent = thresholds[slider.value];
    const drawn = rows.map(([, chosen]) => element("div", {}, ...images.map((_, image) => picture(Number(chosen()), image))));
    pictures.replaceChildren("Bright: the mask. Yellow: the box. The number is their overlap; ✗ marks a wrong prediction.", ...drawn);
    const { title, values } = quantities[quantity()], row = values[slider.value];
    relate(`${title} (${scored} images)`, i => row[i]);
    sweep(quantities, thresholds, thresholds[slider.value]);
  };
}
