// Turn the column titles of each table into buttons that sort its rows by the column, in ascending
// and then in descending order. In both orders, numbers precede text, and empty cells are last. Rows
// with equal cells keep their order.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], titles = [...table.tHead.rows[0].cells];
  const key = ({ dataset, textContent: text }) => {
    if ("value" in dataset) return [0, Number(dataset.value)];
    return text === "" || text === "-" ? [2, ""] : [1, text];
  };
  titles.forEach((title, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const sign = title.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [row, ...key(row.cells[column])]);
      rows.sort(([, kind, x], [, other, y]) =>
        kind - other || sign * (kind ? x.localeCompare(y, "en", { numeric: true }) : x - y));
      body.append(...rows.map(([row]) => row));
    });
  });
}
