// Tables sort by the column whose header is pressed.  Without scripts they are tables still.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const cell = row.cells[at];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v.replace("inf", "Infinity"));
  };
  headers.forEach((header, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const isNumber = body.rows[0]?.cells[at].dataset.v !== undefined;
      const before = header.getAttribute("aria-sort");
      const falls = before ? before === "ascending" : isNumber;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [value(one, at), value(other, at)];
        return (a < b ? -1 : a > b ? 1 : 0) * (falls ? -1 : 1);
      });
      body.append(...rows);
    });
  });
}
