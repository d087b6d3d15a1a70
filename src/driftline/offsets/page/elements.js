// Elements, numbers, tables: small things that every panel needs. Nothing is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A number in few characters; what was not measured is said so. */
export function number(value, unit = "") {
  if (value === null || value === undefined) return "not measured";
  const size = Math.abs(value);
  let text;
  if (size !== 0 && (size < 0.001 || size >= 1e7)) text = value.toExponential(1);
  else if (Number.isInteger(value)) text = value.toLocaleString("en");
  else text = value.toLocaleString("en", { maximumSignificantDigits: 3 });
  return unit ? `${text} ${unit}` : text;
}

export function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

/** A table: `columns` are [title, isNumber]; cells are strings or elements. */
export function table(caption, columns, rows) {
  const head = element("tr", {}, ...columns.map(([title, n]) => element("th", { scope: "col", class: n && "n" }, title)));
  const body = rows.map((cells) =>
    element("tr", {}, ...cells.map((cell, i) => element(i ? "td" : "th", i ? { class: columns[i][1] && "n" } : { scope: "row" }, cell))),
  );
  const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  if (caption) made.prepend(element("caption", {}, caption));
  return made;
}

/** The figures of a picture as a table, folded away. */
export function data(title, columns, rows) {
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title }, table("", columns, rows));
  return element("details", {}, element("summary", {}, "As a table"), scroll);
}

export function empty(text) {
  return element("p", { class: "empty" }, text);
}
