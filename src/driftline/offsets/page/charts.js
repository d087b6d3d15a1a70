// Pictures of series, as SVG. Each has a sentence for who cannot see it, a legend that does not rest on colour
// alone, a readout that follows the pointer and the arrow keys, and its figures as a table.

import { data, element, empty, number, shape } from "./elements.js";

const WIDTH = 640, HEIGHT = 210, LEFT = 56, RIGHT = 12, TOP = 24, BOTTOM = 26;
const STEPS = [1, 2, 2.5, 5, 10];
const FAR_BEYOND = 20;

/** Round values from 0 (or the lowest) to the highest, about `count` of them. */
function ticks(high, count = 4) {
  if (!(high > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(high / count));
  const step = power * STEPS.find((s) => s * power * count >= high * 0.999);
  return Array.from({ length: Math.ceil(high / step - 1e-9) + 1 }, (_, i) => i * step);
}

/** Powers of ten around both. */
function decades(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}

const known = (value) => value !== null && value !== undefined;

function frame(label, x, marks, unit) {
  const [low, high] = [marks[0], marks[marks.length - 1]];
  const share = low > 0 ? (value) => Math.log10(Math.max(value, low) / low) / Math.log10(high / low) : (value) => value / high;
  const places = {
    x: (i) => LEFT + (x.length < 2 ? (WIDTH - LEFT - RIGHT) / 2 : (i * (WIDTH - LEFT - RIGHT)) / (x.length - 1)),
    y: (value) => HEIGHT - BOTTOM - share(value) * (HEIGHT - TOP - BOTTOM),
  };
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label, tabindex: "0" });
  for (const mark of marks) {
    const y = places.y(mark);
    svg.append(shape("line", { class: mark > low ? "grid" : "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    svg.append(shape("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, mark ? number(mark) : "0"));
  }
  svg.append(shape("text", { x: LEFT - 6, y: 11, "text-anchor": "end" }, low > 0 ? `${unit}, log` : unit));
  const shown = [...new Set([0, Math.floor((x.length - 1) / 2), x.length - 1])];
  for (const i of shown) {
    const anchor = shown.length > 1 && i === 0 ? "start" : shown.length > 1 && i === x.length - 1 ? "end" : "middle";
    svg.append(shape("text", { x: places.x(i), y: HEIGHT - 8, "text-anchor": anchor }, `step ${x[i]}`));
  }
  return { svg, places };
}

function path(values, places, closed) {
  let text = "", pen = "M";
  values.forEach((value, i) => {
    if (known(value)) {
      text += `${pen}${places.x(i).toFixed(1)} ${places.y(value).toFixed(1)}`;
      pen = "L";
    } else if (!closed) pen = "M";
  });
  return text;
}

function legendItem(name, index, dash, area) {
  const key = area
    ? shape("rect", { class: `f${index}`, width: 22, height: 10 })
    : shape("line", { class: `line k${index} ${dash ? `dash${dash}` : ""}`, x1: 0, x2: 22, y1: 5, y2: 5 });
  return element("li", {}, shape("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, key), name);
}

/** Show the values under the pointer, or where the arrow keys are. */
function follow(svg, places, x, describe) {
  const readout = element("p", { class: "readout", "aria-live": "polite" });
  const cursor = shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  let at = x.length - 1;
  const show = (i) => {
    at = Math.max(0, Math.min(x.length - 1, i));
    cursor.setAttribute("x1", places.x(at));
    cursor.setAttribute("x2", places.x(at));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = describe(at);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    show(Math.round(share * (x.length - 1)));
  });
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      show(at + moves[event.key]);
    }
  });
  svg.addEventListener("focus", () => show(at));
  return readout;
}

const stepText = (history, i) =>
  history.first[i] === history.last[i] ? `step ${history.last[i]}` : `steps ${history.first[i]} to ${history.last[i]}`;

/**
 * Lines over the steps. `series` are {name, values}; `limit` is {name, value} or null.
 * A series of one value is drawn as a dot.
 */
export function lines(figure, history, title, unit, series, limit = null) {
  const drawn = series.filter((one) => one.values && one.values.some(known));
  if (!drawn.length) return figure.replaceChildren(empty(history.last.length ? "not measured in this run" : "no step yet"));
  const high = Math.max(...drawn.flatMap((one) => one.values.filter(known)), limit ? limit.value : 0);
  const last = history.last.length - 1;
  const saying = drawn.map((one) => `${one.name} ${number(one.values[last], unit)}`).join(", ");
  // Where values dwarf the limit, only a logarithmic axis shows on which side of it the others are.
  const marks = limit && high > FAR_BEYOND * limit.value ? decades(limit.value / 10, high) : ticks(high);
  const { svg, places } = frame(`${title} over ${history.steps} steps; now ${saying}`, history.last, marks, unit);
  drawn.forEach((one, index) => {
    svg.append(shape("path", { class: `line k${index} ${index ? `dash${index}` : ""}`, d: path(one.values, places) }));
    if (history.last.length === 1) {
      svg.append(shape("circle", { class: `f${index}`, cx: places.x(0), cy: places.y(one.values[0] ?? 0), r: 4 }));
    }
  });
  if (limit) svg.append(shape("line", { class: "limit", x1: LEFT, x2: WIDTH - RIGHT, y1: places.y(limit.value), y2: places.y(limit.value) }));
  const legend = element("ul", { class: "legend" }, ...drawn.map((one, index) => legendItem(one.name, index, index)));
  if (limit) legend.append(element("li", { class: "bad" }, `– – ${limit.name} ${number(limit.value, unit)}`));
  const readout = follow(svg, places, history.last, (i) =>
    `${stepText(history, i)}: ${drawn.map((one) => `${one.name} ${number(one.values[i])}`).join(" · ")}`);
  const rows = history.last.map((_, i) => [stepText(history, i), ...drawn.map((one) => number(one.values[i]))]);
  keep(figure, svg, readout, legend, data(title, [["steps", false], ...drawn.map((one) => [one.name, true])], rows));
}

/** Areas on top of one another: parts that add up. */
export function stacked(figure, history, title, unit, parts) {
  const drawn = parts.filter((one) => one.values && one.values.some((value) => value > 0));
  if (!drawn.length) return figure.replaceChildren(empty(history.last.length ? "not measured in this run" : "no step yet"));
  const sums = history.last.map(() => 0);
  const edges = [sums.slice()];
  for (const one of drawn) {
    one.values.forEach((value, i) => (sums[i] += value || 0));
    edges.push(sums.slice());
  }
  const last = history.last.length - 1;
  const saying = drawn.map((one) => `${one.name} ${number(one.values[last], unit)}`).join(", ");
  const label = `${title}; in the last step ${number(sums[last], unit)}: ${saying}`;
  const { svg, places } = frame(label, history.last, ticks(Math.max(...sums)), unit);
  drawn.forEach((_, index) => {
    if (history.last.length === 1) {
      const [low, top] = [places.y(edges[index][0]), places.y(edges[index + 1][0])];
      svg.append(shape("rect", { class: `f${index}`, x: places.x(0) - 30, width: 60, y: top, height: low - top }));
      return;
    }
    const back = edges[index].map((value, i) => `L${places.x(i).toFixed(1)} ${places.y(value).toFixed(1)}`).reverse();
    svg.append(shape("path", { class: `f${index}`, d: `${path(edges[index + 1], places, true)}${back.join("")}Z` }));
  });
  const legend = element("ul", { class: "legend" }, ...drawn.map((one, index) => legendItem(one.name, index, 0, true)));
  const readout = follow(svg, places, history.last, (i) =>
    `${stepText(history, i)}: ${number(edges[drawn.length][i], unit)} = ${drawn.map((one) => `${one.name} ${number(one.values[i])}`).join(" + ")}`);
  const rows = history.last.map((_, i) => [stepText(history, i), ...drawn.map((one) => number(one.values[i]))]);
  keep(figure, svg, readout, legend, data(title, [["steps", false], ...drawn.map((one) => [one.name, true])], rows));
}

/** Put a new picture in place of the old, but leave the table open, and the focus where it was. */
export function keep(figure, svg, ...rest) {
  const open = figure.querySelector("details")?.open;
  const focused = figure.querySelector("svg") === document.activeElement && document.activeElement !== null;
  figure.replaceChildren(svg, ...rest);
  const details = figure.querySelector("details");
  if (open && details) details.open = true;
  if (focused) svg.focus({ preventScroll: true });
}
