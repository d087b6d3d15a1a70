// Asks the service again and again, and shows what has changed.

import { Problem, ask, takeTokenFromFragment, useToken } from "./api.js";
import { element, empty, seconds } from "./elements.js";
import * as panels from "./panels.js";

const PERIOD_MS = 2000;
const RUNS_EVERY = 5;
const at = (id) => document.getElementById(id);
const shown = new Map(); // Part of the page -> entity tag of what it shows.
let chosen = new URLSearchParams(location.search).get("run") || "";
let turns = 0;
let waiting = null;
let round = 0; // Every change of what is shown begins a new one; answers of an older one are nobody's.

class Overtaken extends Error {}

/** Ask for a part, and draw it if it is not what is shown already. */
async function part(name, path, draw) {
  const asked = round;
  const found = await ask(path);
  if (asked !== round) throw new Overtaken();
  if (found.tag === null || shown.get(name) !== found.tag + path) {
    draw(found.body);
    shown.set(name, found.tag + path);
  }
  return found;
}

async function refresh() {
  if (turns % RUNS_EVERY === 0) await listRuns();
  turns += 1;
  if (!chosen) return say("no run yet", false);
  const run = encodeURIComponent(chosen);
  const base = `/v1/runs/${run}`;
  const offset = await part("offset", `${base}/offset`, showOffset);
  at("content").hidden = false;
  await Promise.all([
    part("history", `${base}/history?points=240`, showHistory),
    part("parts", `${base}/divergence?by=${at("by").value}`, (answer) => panels.parts(at("parts"), answer)),
    part("ledger", `${base}/ledger`, (answer) => panels.ledger(at("ledger"), answer)),
    part("timeline", `${base}/timeline?seconds=${at("seconds").value}`, (answer) => panels.timeline(at("timeline"), answer)),
  ]);
  const { stale, age_s: age, trouble } = offset.body;
  say(stale ? `stale: as of ${seconds(age)} ago. ${trouble}` : "live", stale);
  complain(null);
}

function showOffset(offset) {
  panels.tiles(at("tiles"), offset);
  panels.causes(at("causes"), at("cause-why"), offset);
  panels.engines(at("engines"), offset);
  document.title = `${offset.run}: step ${offset.step ?? "none"}, ${offset.state}`;
}

function showHistory(history) {
  panels.causeStrip(at("cause-strip"), history);
  panels.overTime({ k3: at("k3"), lag: at("lag"), lead: at("lead"), wait: at("wait") }, history);
}

async function listRuns() {
  const { body } = await ask("/v1/runs");
  const names = body.runs.map((one) => one.run);
  if (!chosen && names.length) chosen = names[0];
  if (chosen && !names.includes(chosen)) names.unshift(chosen);
  const options = names.map((name) => element("option", { value: name, selected: name === chosen }, name));
  const menu = at("run");
  if (menu.options.length !== options.length || names.some((name, i) => menu.options[i].value !== name)) menu.replaceChildren(...options);
  if (!names.length) complain(new Problem(404, "the store holds no run yet", "start one: make demo, or wait if one is starting"));
}

function say(text, stale) {
  const place = at("freshness");
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("stale", stale);
}

function complain(error) {
  at("problem").hidden = error === null;
  if (error !== null && at("problem").textContent !== error.message) at("problem").textContent = error.message;
  at("token-form").hidden = error === null || error.status !== 401;
}

async function loop() {
  clearTimeout(waiting);
  const mine = ++round;
  try {
    if (!document.hidden) await refresh();
  } catch (error) {
    if (mine !== round || error instanceof Overtaken) return;
    if (!(error instanceof Problem)) throw error;
    complain(error);
    say(error.status === 401 ? "locked" : "no answer", error.status !== 401);
    if (error.status === 401) at("content").hidden = true;
    turns = 0;
  } finally {
    if (mine === round) waiting = setTimeout(loop, PERIOD_MS);
  }
}

/** Start over, at once. */
function again() {
  shown.clear();
  loop();
}

at("run").addEventListener("change", (event) => {
  chosen = event.target.value;
  history.replaceState(null, "", `?run=${encodeURIComponent(chosen)}`);
  at("trajectory").replaceChildren();
  again();
});
at("by").addEventListener("change", again);
at("seconds").addEventListener("change", again);
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(at("token").value);
  at("token").value = "";
  turns = 0;
  again();
});
at("trajectory-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const place = at("trajectory");
  const path = `/v1/runs/${encodeURIComponent(chosen)}/trajectories/${at("group").value}/${at("member").value}`;
  try {
    panels.trajectory(place, (await ask(path)).body);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    place.replaceChildren(empty(error.message));
  }
});
document.addEventListener("visibilitychange", loop);

takeTokenFromFragment();
loop();
