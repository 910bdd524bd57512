// What every page of a report does: tables that sort and search, code that folds, and the scheme of the screen.
(() => {
  "use strict";
  const decompressed = letters => {
    const bytes = Uint8Array.from(atob(letters), letter => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  };
  const unpacked = element => decompressed(element.textContent).json();
  window.workbook = { decompressed, unpacked };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const scheme = () => document.documentElement.classList.toggle("dark", dark.matches);
  dark.addEventListener("change", scheme);
  scheme();

  const shown = value => {
    if (value === null) return "—";
    if (typeof value !== "number" || Number.isInteger(value)) return String(value);
    return String(Number(value.toPrecision(4)));
  };
  const escaped = text => text.replace(/[&<>"']/g, sign => `&#${sign.charCodeAt(0)};`);

  const draw = async box => {
    const content = await unpacked(box.querySelector("script"));
    const table = document.createElement("table");
    box.querySelector(".slot").replaceChildren(table);
    const columns = content.header.map((title, place) => ({
      title: escaped(title),
      type: content.rows.every(row => row[place] === null || typeof row[place] === "number") ? "num" : "string",
      render: (value, kind) => (kind === "display" ? escaped(shown(value)) : value ?? (kind === "sort" ? -Infinity : "")),
    }));
    const paged = content.rows.length > 10;
    const layout = { topStart: null, topEnd: paged ? "search" : null, bottomStart: paged ? "info" : null, bottomEnd: paged ? "paging" : null };
    new window.itables.default(table, { data: content.rows, columns, layout, paging: paged, info: paged, searching: paged, order: [], autoWidth: false });
    table.parentElement.classList.add("scroll");
    table.parentElement.tabIndex = 0;
  };

  if (window.itables) {
    const seen = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
      seen.unobserve(entry.target);
      draw(entry.target);
    }), { rootMargin: "300px" });
    document.querySelectorAll(".table[data-rows]").forEach(box => seen.observe(box));
  }

  const button = document.getElementById("code-button");
  const folds = [...document.querySelectorAll("details.code")];
  button?.addEventListener("click", () => {
    const open = !folds.some(fold => fold.open);
    folds.forEach(fold => { fold.open = open; });
    button.textContent = open ? "Hide the code" : "Show the code";
  });
})();
