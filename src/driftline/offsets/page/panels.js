// What each answer looks like. Functions of an answer and a place; they ask for nothing.

import { keep, lines, stacked } from "./charts.js";
import { data, element, empty, number, seconds, shape, table } from "./elements.js";

const CAUSES = ["engine mismatch", "staleness", "failed weight sync"];
const K3 = "divergence/k3_nats", FLOOR = "divergence/floor_k3_nats", MEMBER_P99 = "divergence/member_k3_p99_nats", ESS = "divergence/ess_fraction";
const LAG = "lag/steps_mean", WAIT = "time_to_batch/seconds";

export function tiles(place, offset) {
  const metric = (name, unit) => number(offset.metrics[name], unit);
  const planned = offset.steps_planned ? ` of ${offset.steps_planned}` : "";
  const behind = offset.engines.filter((one) => one.alive).map((one) => one.lag_versions).filter((lag) => lag !== null);
  const budget = offset.budget_k3_nats === null ? "" : `budget ${number(offset.budget_k3_nats)}`;
  const shown = [
    ["State", offset.state, offset.reason],
    ["Step", offset.step === null ? "none" : `${offset.step}${planned}`, ""],
    ["Current version", offset.version === null ? "none" : String(offset.version), ""],
    ["Engines behind, most", behind.length ? `${Math.max(...behind)} versions` : "no engine alive", ""],
    ["Divergence k3", metric(K3, "nats"), budget],
    ["Effective sample", metric(ESS), "share of the tokens"],
    ["Lag of the batch", metric(LAG, "versions"), ""],
    ["Lead", offset.lead_groups === null ? "none" : `${offset.lead_groups} groups`, offset.lead_why || offset.controller || ""],
    ["Time to batch", metric(WAIT, "s"), ""],
    ["Reward", metric("rollout/reward_mean"), ""],
  ];
  place.replaceChildren(...shown.map(([name, value, note]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value, note ? element("small", {}, ` ${note}`) : null))));
}

/** The three causes side by side, each with the figure that speaks for or against it. */
export function causes(place, why, offset) {
  const found = offset.diagnosis;
  const figures = found ? found.figures : {};
  const probes = offset.engines.map((one) => one.probe_difference_nats).filter((value) => value !== null);
  const evidence = {
    "engine mismatch": ["Engine floor", `k3 at lag 0: ${number(figures.floor_k3_nats ?? offset.metrics[FLOOR], "nats")}`],
    staleness: ["Staleness", `growth of k3 with a version of lag: ${number(figures.growth_nats_per_version, "nats")}`],
    "failed weight sync": ["Weight sync", `difference from the probe: ${number(probes.length ? Math.max(...probes) : figures.probe_difference_max_nats, "nats")}`],
  };
  why.textContent = found
    ? `${found.cause}: ${found.why}`
    : offset.step ? "not diagnosed: the records of this run do not say" : "no step yet";
  place.replaceChildren(...CAUSES.map((cause) => {
    const [name, figure] = evidence[cause];
    const verdict = !found ? "unknown" : found.cause === cause ? "fault" : "ok";
    const words = { unknown: "not diagnosed", fault: "this is the cause", ok: "not the cause" }[verdict];
    const engine = verdict === "fault" && found.engine ? `, engine ${found.engine}` : "";
    return element("li", { class: verdict }, element("strong", {}, `${name}: ${words}${engine}`), element("span", {}, figure));
  }));
}

/** What was diagnosed over the steps, as a strip. */
export function causeStrip(figure, history) {
  const all = ["healthy", ...CAUSES];
  if (!history.cause.some((cause) => cause !== null)) return figure.replaceChildren();
  const heights = { healthy: 6, staleness: 14, "engine mismatch": 20, "failed weight sync": 26 };
  const counts = all.map((cause) => [cause, history.cause.filter((found) => found === cause).length]).filter(([, n]) => n);
  const label = `Diagnosis over ${history.steps} steps: ${counts.map(([cause, n]) => `${cause} in ${n} of ${history.cause.length} points`).join(", ")}`;
  const width = 1000 / history.cause.length;
  const svg = shape("svg", { viewBox: "0 0 1000 28", preserveAspectRatio: "none", height: 28, role: "img", "aria-label": label });
  history.cause.forEach((cause, i) => {
    if (cause === null) return;
    const h = heights[cause];
    svg.append(shape("rect", { class: `f${[3, 1, 4, 5][all.indexOf(cause)]}`, x: i * width, width: Math.max(width - 0.5, 0.5), y: 28 - h, height: h }));
  });
  const legend = element("ul", { class: "legend" }, ...counts.map(([cause]) =>
    element("li", {}, shape("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, shape("rect", { class: `f${[3, 1, 4, 5][all.indexOf(cause)]}`, width: 22, height: 10 })), cause)));
  figure.replaceChildren(svg, legend);
}

export function engines(place, offset) {
  if (!offset.engines.length) {
    place.replaceChildren(element("tbody", {}, element("tr", {}, element("td", {}, empty("no engine has reported yet")))));
    return;
  }
  const columns = [["engine", false], ["version", true], ["behind", true], ["for", true], ["k3 of its tokens", true], ["floor", true],
    ["off the probe", true], ["heartbeat", true], ["episodes", true], ["last pause", true]];
  const rows = offset.engines.map((one) => [
    one.engine,
    String(one.version),
    one.lag_versions === null ? "unknown" : `${one.lag_versions} versions`,
    one.lag_versions === 0 ? "up to date" : seconds(one.lag_seconds),
    number(one.divergence && one.divergence.k3_nats),
    number(one.floor_k3_nats),
    one.refused_version === null
      ? number(one.probe_difference_nats)
      : element("span", { class: "bad" }, `${number(one.probe_difference_nats)}, refused version ${one.refused_version}`),
    element("span", { class: one.alive ? "good" : "bad" }, `${seconds(one.heartbeat_age_s)} ago${one.alive ? "" : ", silent"}`),
    `${one.running_episodes} + ${one.waiting_episodes} waiting`,
    seconds(one.pause_s),
  ]);
  place.replaceChildren(...table("", columns, rows).children);
}

export function overTime(places, history) {
  const value = history.values;
  const limit = history.budget_k3_nats === null ? null : { name: "budget", value: history.budget_k3_nats };
  const peaks = history.steps > history.last.length ? [{ name: "largest in a point", values: history.k3_peak_nats }] : [];
  lines(places.k3, history, "Divergence of the batch, k3", "nats",
    [{ name: "k3", values: value[K3] }, { name: "floor (lag 0)", values: value[FLOOR] }, { name: "of 1 in 100 members", values: value[MEMBER_P99] }, ...peaks], limit);
  lines(places.lag, history, "Lag of the batch", "versions", [
    { name: "mean", values: value[LAG] }, { name: "largest", values: value["lag/steps_max"] },
    { name: "in flight", values: value["lag/in_flight_mean"] }, { name: "in the queue", values: value["lag/in_queue_mean"] }]);
  const measured = value["overlap/effective_lead_groups"];
  const effective = measured || (value[LAG] && history.groups_per_step
    ? value[LAG].map((lag) => (lag === null ? null : lag * history.groups_per_step)) : null);
  lines(places.lead, history, "Lead of generation over training", "groups",
    [{ name: "allowed", values: history.lead_groups }, { name: "used, by the batch's mean lag", values: effective }]);
  const causes = ["queue", "reset", "prefill", "decode", "tool", "reward", "straggler", "publish", "apply", "admission", "trainer"];
  stacked(places.wait, history, "Time to a trainable batch", "s",
    causes.map((cause) => ({ name: cause, values: value[`time_to_batch/${cause}_seconds`] })));
}

/** Bars: k3 of the tokens of each lag, environment or version. */
export function parts(figure, answer) {
  if (!answer.measured) {
    const whole = answer.batch[K3];
    const note = whole === null || whole === undefined ? "" : ` Of the whole batch: k3 ${number(whole, "nats")}.`;
    return figure.replaceChildren(empty(answer.note + note));
  }
  const shown = answer.parts.slice(-16);
  const high = Math.max(...shown.map((part) => part.k3_nats || 0), 1e-12);
  const row = 24, width = 640, left = 150;
  const label = `k3 by ${answer.by} over ${answer.steps} steps: ${shown.map((part) => `${part.key} ${number(part.k3_nats, "nats")}`).join(", ")}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${row * shown.length}`, role: "img", "aria-label": label });
  shown.forEach((part, i) => {
    const length = ((part.k3_nats || 0) / high) * (width - left - 90);
    svg.append(shape("text", { x: left - 8, y: i * row + 16, "text-anchor": "end" }, `${answer.by} ${part.key}${part.or_more ? " or more" : ""}`));
    svg.append(shape("rect", { class: "f0", x: left, y: i * row + 4, height: row - 8, width: Math.max(length, 1) }));
    svg.append(shape("text", { x: left + length + 6, y: i * row + 16 }, number(part.k3_nats, "nats")));
  });
  const rows = answer.parts.map((part) => [part.key, number(part.tokens), number(part.k3_nats), number(part.k3_error_nats), number(part.member_k3_nats.p50), number(part.member_k3_nats.p99), number(part.ess_fraction)]);
  keep(figure, svg, data(`Divergence by ${answer.by}`, [[answer.by, false], ["tokens", true], ["k3, nats", true], ["error", true], ["members\' median", true], ["members\' 99%", true], ["effective sample", true]], rows));
}

export function ledger(figure, answer) {
  if (!answer.measured) return figure.replaceChildren(empty(answer.step === null ? "no step yet" : "not measured in this run"));
  const terms = Object.entries(answer.terms).filter(([, tokens]) => tokens > 0);
  const label = `${answer.generated} tokens sampled: ${terms.map(([name, n]) => `${n} ${name.replace("_", " ")}`).join(", ")}`;
  const svg = shape("svg", { viewBox: "0 0 640 34", role: "img", "aria-label": label });
  let at = 0;
  terms.forEach(([, tokens], i) => {
    const width = (tokens / Math.max(answer.generated, 1)) * 640;
    svg.append(shape("rect", { class: `f${i % 9}`, x: at, width: Math.max(width - 1, 0.5), y: 2, height: 28 }));
    at += width;
  });
  const balance = answer.balances
    ? element("p", { class: "good" }, `balances: ${number(answer.generated)} tokens sampled, every one accounted for`)
    : element("p", { class: "bad" }, `out of balance by ${answer.imbalance} tokens`);
  const swatch = (i) => shape("svg", { viewBox: "0 0 22 10", width: 22, height: 10, "aria-hidden": "true" }, shape("rect", { class: `f${i % 9}`, width: 22, height: 10 }));
  const legend = element("ul", { class: "legend" }, ...terms.map(([name, tokens], i) =>
    element("li", {}, swatch(i), `${name.replace("_", " ")} ${number(tokens)} (${((100 * tokens) / answer.generated).toFixed(1)}%)`)));
  const reasons = [
    ...answer.admission.map((one) => [`${one.verdict.replace("_", "-")}${one.reason ? `, ${one.reason}` : ""}`, number(one.members), number(one.tokens)]),
    ...answer.given_up.map((one) => [`group given up, ${one.reason}`, number(one.members), number(one.tokens)]),
    ...Object.entries(answer.by_reason).flatMap(([term, by]) =>
      Object.entries(by).map(([reason, tokens]) => [`${term}, ${reason}`, "", number(tokens)])),
  ];
  keep(figure, svg, balance, legend, data("By reason", [["what became of them", false], ["members", true], ["tokens", true]], reasons));
}

export function timeline(figure, answer) {
  if (!answer.spans.length) return figure.replaceChildren(empty("nothing was recorded yet"));
  const row = 26, width = 1200, left = 120, span = answer.end_unix - answer.start_unix || 1;
  const colors = { rollout: 0, training: 1, publish: 2, apply: 3 };
  const x = (unix) => left + ((unix - answer.start_unix) / span) * (width - left);
  const busy = answer.lanes.map((lane) => answer.spans.filter((one) => one.lane === lane).reduce((sum, one) => sum + one.end_unix - one.start_unix, 0));
  const label = `Timeline of ${seconds(span)}: ${answer.lanes.map((lane, i) => `${lane} ${seconds(busy[i])}`).join(", ")}`;
  const height = row * answer.lanes.length + 20;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  answer.lanes.forEach((lane, i) => svg.append(shape("text", { x: left - 8, y: i * row + 17, "text-anchor": "end" }, lane)));
  for (const one of answer.spans) {
    const y = answer.lanes.indexOf(one.lane) * row + 4;
    const bar = shape("rect", { class: `f${colors[one.lane] ?? 8}`, x: x(one.start_unix), width: Math.max(x(one.end_unix) - x(one.start_unix), 0.7), y, height: row - 8 });
    bar.append(shape("title", {}, `${one.lane}${one.cause ? ` (${one.cause})` : ""}, ${seconds(one.end_unix - one.start_unix)}`));
    svg.append(bar);
  }
  for (const unix of answer.commits) svg.append(shape("line", { class: "cursor", x1: x(unix), x2: x(unix), y1: 0, y2: height - 20 }));
  svg.append(shape("text", { x: left, y: height - 4 }, `${seconds(span)} before the last recorded moment`));
  svg.append(shape("text", { x: width, y: height - 4, "text-anchor": "end" }, "dashed: commits"));
  const rows = answer.lanes.map((lane, i) => [lane, seconds(busy[i])]);
  keep(figure, svg, data("Recorded time of each lane", [["lane", false], ["seconds", true]], rows));
}

export function trajectory(place, answer) {
  const fate = answer.given_up ? `its group was given up: ${answer.given_up}` : answer.verdict ? `${answer.verdict.replace("_", "-")}${answer.reason ? ` (${answer.reason})` : ""}, weight ${number(answer.weight)}` : "trained";
  const summary = element("p", {}, `Task ${answer.task_id}, step ${answer.step}, trained by version ${answer.trained_version}; ${fate}. ${answer.note}`);
  const rows = answer.segments.map((one) => [String(one.start), String(one.version), number(one.lag), number(one.tokens), number(one.k1_nats), number(one.k3_nats), number(one.ess_fraction)]);
  place.replaceChildren(summary, element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Segments" }, table("", [["first token", true], ["version", true], ["lag", true], ["tokens", true], ["k1, nats", true], ["k3, nats", true], ["effective sample", true]], rows)));
}
