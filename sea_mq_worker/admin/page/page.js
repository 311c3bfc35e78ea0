// Asks every two seconds how it stands. What is shown changes in place, so that nothing jumps.

import { headers } from "./asking.js";
import { openDesk, refreshList, resumeButtons } from "./desk.js";
import { drawSides, showSides } from "./sides.js";
import { atClock, command, count, element, grow, moment, present, setClock, table, whole, write } from "./words.js";

const TOKEN_PLACE = "The token is in the file that SEA_MQ_ADMIN_TOKEN_FILE names; `dev` prints an address that signs in.";
const STATUS_SECONDS = 2;
const HISTORY_SECONDS = 5;
const PATIENCE_SECONDS = 5;

const at = (id) => document.getElementById(id);
let last = 0;
let lost = 0;
let drawn = 0;
let dead = "";

function show(status) {
  setClock(status.now);
  last = Date.now();
  lost = 0;
  document.title = `${status.verdict.state} – ${status.context} sea_mq_worker`;
  write(at("context"), status.context);
  const others = status.overview?.workers > 1 ? `, ${count(status.overview.workers)} workers on this database` : "";
  write(at("about"), `${status.worker}, version ${status.version}, up for ${whole(status.now - status.started)}${others}`);
  showVerdict(status.verdict, status.offers === "all" ? status.slow_types : []);
  showSides(status);
  showConsumers(status.consumers);
  showTroubles(status.troubles);
  showNews(status.news);
  at("closed").hidden = status.offers === "all";
  offer(status);
  at("main").classList.remove("old");
}

function showVerdict(verdict, resumable = []) {
  at("verdict").dataset.level = verdict.level;
  write(at("state"), verdict.state);
  write(at("text"), verdict.text);
  at("since").hidden = verdict.level === "good" || verdict.level === "idle" || !verdict.since;
  write(at("since"), `since ${atClock(verdict.since)}, for ${whole(present() - verdict.since)}`);
  const others = verdict.causes.slice(1);
  at("causes").hidden = !others.length;
  once(at("causes"), others, () => others.map((cause) => element("li", {}, element("b", {}, cause.part), said(cause), " ", moment(cause.since))));
  once(at("helps"), verdict.helps, () => verdict.helps.map(command));
  at("resumes").hidden = !resumable.length;
  once(at("resumes"), resumable, () => resumeButtons(resumable));
}

/** A reason that begins with its part does not name it twice. */
function said({ part, reason }) {
  return reason.startsWith(part) ? reason.slice(part.length) : `: ${reason}`;
}

function showConsumers(consumers) {
  at("consumers").hidden = !consumers.length;
  const heads = ["Consumer", "To deliver", "In hand", "Redelivered", "State"];
  once(at("consumers").lastElementChild, consumers.map(({ at: _, ...rest }) => rest), () => [
    table("Consumers", heads, consumers.map((each) => [
      `${each.stream}/${each.durable}`,
      count(each.pending),
      each.ack_pending_max > 0 ? `${count(each.ack_pending)} of ${count(each.ack_pending_max)}` : count(each.ack_pending),
      count(each.redelivered),
      each.error ?? (each.paused_seconds ? `paused for ${whole(each.paused_seconds)} more` : "active"),
    ])),
  ]);
}

function showTroubles(troubles) {
  at("troubles").hidden = !troubles.length;
  once(at("troubles").lastElementChild, troubles, () => [
    table("Failures", ["Where", "Times", "What", "Last"], troubles.map((each) => [`${each.side}, ${each.what}`, count(each.count), each.text, moment(each.last)])),
  ]);
}

function showNews(news) {
  at("news").hidden = !news.length;
  once(at("news").lastElementChild, news, () => news.map((each) => element("li", { "data-level": each.level }, moment(each.at), ` ${each.text}`, each.times > 1 ? element("small", {}, ` ${count(each.times)} times`) : null)));
}

function offer(status) {
  const offers = status.offers === "all";
  const counted = Object.values(status.sides).every((side) => side.sample); // only then is it known which list has something
  at("search").hidden = at("forget").hidden = !offers;
  if (!offers || counted) at("stopped").hidden = !offers;
  const now = JSON.stringify(Object.values(status.sides).map((side) => side.sample?.dead));
  for (const [tab, side, text] of [["tab-events", "outbox", "Dead events"], ["tab-letters", "inbox", "Dead letters"]]) {
    const number = status.sides[side]?.sample?.dead;
    write(at(tab), number ? `${text} (${count(number)})` : text);
  }
  if (offers && counted && now !== dead && refreshList(status.sides.outbox?.sample.dead, status.sides.inbox?.sample.dead)) dead = now;
}

/** Make children anew only where what they tell has changed. */
function once(shown, told, make) {
  const text = JSON.stringify(told);
  if (shown.dataset.told === text) return;
  shown.dataset.told = text;
  shown.replaceChildren(...make());
}

function fail(state, text, helps) {
  lost ||= present();
  at("main").classList.add("old");
  showVerdict({ level: "bad", state, text, since: lost, causes: [], helps });
  document.title = `${state} – sea_mq_worker`;
}

async function get(path) {
  return fetch(path, { headers: headers(), signal: AbortSignal.timeout(PATIENCE_SECONDS * 1000) });
}

async function poll() {
  try {
    const answer = await get("status");
    const locked = answer.status === 401 || answer.status === 429;
    if (locked !== !at("login").hidden) lock(locked);
    if (answer.ok) {
      show(await answer.json());
      await pollHistory();
    } else if (locked) {
      at("main").classList.add("old");
      showVerdict(await lockedVerdict(answer.status === 429));
    } else {
      fail("Broken", `The worker answers ${answer.status}.`, ["python -m sea_mq_worker doctor"]);
    }
  } catch {
    fail("Gone", "The worker does not answer: it has ended, is stuck, or cannot be reached from here.", ["python -m sea_mq_worker doctor"]);
  }
  grow();
  write(at("fresh"), last ? `Numbers of ${atClock(last / 1000)}, asked for every ${STATUS_SECONDS} s` : "");
}

/** Without the token only the probe answers: whether work goes on, and which part is in the way. */
async function lockedVerdict(tooMany) {
  const ready = await (await get("readyz")).json();
  const text = tooMany ? "Too many wrong tokens: wait a minute." : TOKEN_PLACE;
  const causes = (ready.parts ?? []).map((part) => ({ part, reason: "sign in to see why", since: present() }));
  const state = ready.ok ? "Locked, ready" : `Locked, ${ready.state}`;
  return { level: ready.ok ? "idle" : "bad", state, text, since: present(), causes, helps: [] };
}

async function pollHistory() {
  if (Date.now() - drawn < HISTORY_SECONDS * 1000) return;
  const answer = await get("history");
  if (!answer.ok) return;
  drawSides(await answer.json());
  drawn = Date.now();
}

/** Sign in by `#token=…`, which no browser sends: then it is gone from the address and from the tab's history. */
function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", location.pathname);
}

function lock(locked) {
  at("login").hidden = !locked;
  if (locked) {
    write(at("refused"), sessionStorage.getItem("token") ? "That is not its token." : "");
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
    at("wanted").focus();
    at("wanted").select();
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
openDesk();

/** One question after the other: a slow answer is waited for, and nothing is asked while the token is. */
async function run() {
  if (!document.hidden && at("login").hidden) await poll();
  setTimeout(run, STATUS_SECONDS * 1000);
}
run();
