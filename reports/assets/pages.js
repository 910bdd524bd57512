// Tables that sort and search, and one button for all code.
for (const table of window.itables ? document.querySelectorAll("table.sortable") : []) {
  const long = table.tBodies[0].rows.length > 10;
  new window.itables.default(table, { paging: long, searching: long, info: long, order: [], autoWidth: false, pageLength: 10,
    layout: { topStart: null, topEnd: long ? "search" : null, bottomStart: long ? "info" : null, bottomEnd: long ? "paging" : null } });
}
const folds = [...document.querySelectorAll("details.code")];
document.getElementById("code")?.addEventListener("click", ({ target }) => {
  const open = !folds.some(fold => fold.open);
  folds.forEach(fold => { fold.open = open; });
  target.textContent = open ? "Hide the code" : "Show the code";
});
