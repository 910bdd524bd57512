// Tables that sort and search and never get lower, so that nothing below them jumps, and one button for all code.
for (const table of window.itables ? document.querySelectorAll("table.sortable") : []) {
  const pageLength = Number(table.dataset.rows ?? 10);
  const long = table.tBodies[0].rows.length > pageLength;
  const shown = new window.itables.default(table, { paging: long, searching: long, info: long, order: [], autoWidth: false, pageLength,
    layout: { topStart: null, topEnd: long ? "search" : null, bottomStart: long ? "info" : null, bottomEnd: long ? "paging" : null } });
  const keep = (box = table.closest(".table")) => { box.style.minHeight = `${box.offsetHeight}px`; };
  keep();
  shown.on("draw", () => keep());
}
const folds = [...document.querySelectorAll("details.code")];
document.getElementById("code")?.addEventListener("click", ({ target }) => {
  const open = !folds.some(fold => fold.open);
  folds.forEach(fold => { fold.open = open; });
  target.textContent = open ? "Hide the code" : "Show the code";
});
// A figure that is wider than its column, and scrolls on a phone, says so there.
const mark = figure => figure.classList.toggle("wide", figure.scrollWidth > figure.clientWidth + 1);
const widths = new ResizeObserver(entries => entries.forEach(({ target }) => mark(target)));
for (const figure of document.querySelectorAll("main figure")) {
  widths.observe(figure);
  for (const image of figure.querySelectorAll("img")) image.addEventListener("load", () => mark(figure));
}
