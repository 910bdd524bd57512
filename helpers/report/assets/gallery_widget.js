// Pictures in a grid with one of them chosen, by the mouse or by the left and right keys. The kernel writes the HTML, names escaped.
function render({ model, el }) {
  const [grid, detail] = [document.createElement("div"), document.createElement("div")];
  grid.className = "workbook-grid";
  detail.className = "workbook-detail";
  el.classList.add("workbook-gallery");
  el.tabIndex = 0;
  el.dataset.lmSuppressShortcuts = "true"; // the keys are the gallery's, not the notebook's
  el.append(detail, grid);
  const mark = () => {
    for (const item of grid.querySelectorAll("[data-at]")) item.classList.toggle("chosen", Number(item.dataset.at) === model.get("value"));
  };
  const fill = () => {
    grid.innerHTML = model.get("grid");
    detail.innerHTML = model.get("detail");
    mark();
  };
  const go = (place) => {
    if (place < 0 || place >= model.get("count")) return;
    model.set("value", place);
    model.save_changes();
    mark();
  };
  el.addEventListener("click", (event) => {
    const item = event.target.closest("[data-at]");
    if (item) go(Number(item.dataset.at));
    el.focus({ preventScroll: true });
  });
  el.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    go(model.get("value") + step);
  });
  model.on("change:grid", fill);
  model.on("change:detail", fill);
  model.on("change:value", mark);
  fill();
}

export default { render };
