// Requests the status every two seconds, and updates the page in place, so that nothing moves.

import { headers } from "./api.js";
import { initOperatorPanel, refreshList, resumeButtons } from "./operator_panel.js";
import { showSides } from "./side_cards.js";
import { atClock, command, count, element, moment, once, present, setClock, table, updateAges, whole, write } from "./rendering.js";

const TOKEN_HINT = "The token is in the file of SEA_MQ_ADMIN_TOKEN_FILE; `dev` prints an address that signs in.";
const STATUS_SECONDS = 2;
const TIMEOUT_SECONDS = 5;

const at = (id) => document.getElementById(id);
let last = 0;
let lost = 0;
let dead = "";

function show(status) {
  setClock(status.now);
  last = Date.now();
  lost = 0;
  document.title = `${status.health.state} – ${status.context} sea_mq_worker`;
  write(at("context"), status.context);
  const others = status.overview?.workers > 1 ? `, ${count(status.overview.workers)} workers on this database` : "";
  write(at("about"), `${status.worker}, version ${status.version}, up for ${whole(status.now - status.started)}${others}`);
  showHealth(status.health, status.offers === "all" ? status.slow_types : []);
  showSides(status);
  showConsumers(status.consumers);
  showErrors(status.errors);
  at("closed").hidden = status.offers === "all";
  offer(status);
  at("main").classList.remove("old");
}

function showHealth(health, resumable = []) {
  at("health").dataset.level = health.level;
  write(at("state"), health.state);
  write(at("text"), health.text);
  at("since").hidden = health.level === "good" || health.level === "idle" || !health.since;
  write(at("since"), `since ${atClock(health.since)}, for ${whole(present() - health.since)}`);
  const others = health.causes.slice(1);
  at("causes").hidden = !others.length;
  once(at("causes"), others, () => others.map((cause) => element("li", {}, element("b", {}, cause.part), reasonText(cause), " ", moment(cause.since))));
  once(at("next-steps"), health.next_steps, () => health.next_steps.map(command));
  at("resumes").hidden = !resumable.length;
  once(at("resumes"), resumable, () => resumeButtons(resumable));
}

/** Return a reason without its part's name if it begins with that name. */
function reasonText({ part, reason }) {
  return reason.startsWith(part) ? reason.slice(part.length) : `: ${reason}`;
}

function showConsumers(consumers) {
  at("consumers").hidden = !consumers.length;
  const heads = ["Consumer", "To deliver", "Oldest", "In flight", "Redelivered", "State"];
  once(at("consumers").lastElementChild, consumers, () => [
    table("Consumers", heads, consumers.map((each) => [
      `${each.stream}/${each.durable}`,
      count(each.pending),
      each.oldest_seconds == null ? "–" : whole(each.oldest_seconds),
      each.ack_pending_max > 0 ? `${count(each.ack_pending)} of ${count(each.ack_pending_max)}` : count(each.ack_pending),
      count(each.redelivered),
      each.error ?? (each.paused_seconds ? `paused for ${whole(each.paused_seconds)} more` : "active"),
    ])),
  ]);
}

function showErrors(errors) {
  at("errors").hidden = !errors.length;
  once(at("errors").lastElementChild, errors, () => [
    table("Errors", ["Side", "Times", "Error", "Last"], errors.map((each) => [`${each.side}, ${each.effect}`, count(each.count), each.text, moment(each.last)])),
  ]);
}

function offer(status) {
  const offers = status.offers === "all";
  const counted = Object.values(status.sides).every((side) => side.sample); // the first sample shows which list is non-empty
  at("search").hidden = at("forget").hidden = !offers;
  if (!offers || counted) at("stopped").hidden = !offers;
  const now = JSON.stringify(Object.values(status.sides).map((side) => side.sample?.dead));
  for (const [tab, side, text] of [["tab-events", "outbox", "Dead events"], ["tab-letters", "inbox", "Dead letters"]]) {
    const number = status.sides[side]?.sample?.dead;
    write(at(tab), number ? `${text} (${count(number)})` : text);
  }
  if (offers && counted && now !== dead && refreshList(status.sides.outbox?.sample.dead, status.sides.inbox?.sample.dead)) dead = now;
}

function fail(state, text, next_steps) {
  lost ||= present();
  at("main").classList.add("old");
  showHealth({ level: "bad", state, text, since: lost, causes: [], next_steps });
  document.title = `${state} – sea_mq_worker`;
}

async function get(path) {
  return fetch(path, { headers: headers(), signal: AbortSignal.timeout(TIMEOUT_SECONDS * 1000) });
}

async function poll() {
  try {
    const answer = await get("status");
    const locked = answer.status === 401 || answer.status === 429;
    if (locked !== !at("login").hidden) lock(locked);
    if (answer.ok) {
      show(await answer.json());
    } else if (locked) {
      at("main").classList.add("old");
      showHealth(await lockedHealth(answer.status === 429));
    } else {
      fail("Broken", `The worker answered with status ${answer.status}.`, ["python -m sea_mq_worker doctor"]);
    }
  } catch {
    fail("Gone", "The worker does not answer: it has stopped, is stuck, or is unreachable from this browser.", ["python -m sea_mq_worker doctor"]);
  }
  updateAges();
  write(at("fresh"), last ? `Numbers of ${atClock(last / 1000)}, updated every ${STATUS_SECONDS} s` : "");
}

/** Without the token only the probe answers, with the unready parts. */
async function lockedHealth(tooMany) {
  const ready = await (await get("readyz")).json();
  const text = tooMany ? "Too many wrong tokens: wait a minute." : TOKEN_HINT;
  const causes = (ready.parts ?? []).map((part) => ({ part, reason: "sign in to see why", since: present() }));
  const state = ready.ok ? "Locked, ready" : `Locked, ${ready.state}`;
  return { level: ready.ok ? "idle" : "bad", state, text, since: present(), causes, next_steps: [] };
}

/** Sign in by `#token=…`, which no browser sends, and remove it from the address and the tab's history. */
function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
}

function lock(locked) {
  at("login").hidden = !locked;
  if (locked) {
    write(at("refused"), sessionStorage.getItem("token") ? "The token is wrong." : "");
    sessionStorage.removeItem("token");
    at("token").focus();
  }
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value);
  at("token").value = "";
  at("login").hidden = true;
  poll();
});
at("forget").addEventListener("click", () => {
  sessionStorage.removeItem("token");
  location.reload();
});
document.addEventListener("keydown", (event) => {
  const writes = event.target.closest("input, textarea, [contenteditable]");
  if (event.key === "/" && !writes && !at("search").hidden && !at("detail").open) {
    event.preventDefault();
    at("lookup-id").focus();
    at("lookup-id").select();
  } else if (event.key === "Escape" && !at("detail").open) {
    at("found").hidden = true;
  }
});
document.addEventListener("visibilitychange", () => document.hidden || poll());
addEventListener("hashchange", () => {
  takeToken();
  poll();
});
takeToken();
initOperatorPanel();

/** Poll one request at a time; wait for a slow answer, and pause while the sign-in form is shown. */
async function run() {
  if (!document.hidden && at("login").hidden) await poll();
  setTimeout(run, STATUS_SECONDS * 1000);
}
run();
