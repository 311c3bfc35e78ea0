// Requests the status every two seconds, and shows health, sides, consumers and errors.

import { at, atClock, command, count, duration, element, headers, moment, once, present, setClock, table, updateAges, write } from "./elements.js";
import { initOperator, refreshList, resumeButtons } from "./operator.js";

const TOKEN_HINT = "The token is in the file of SEA_MQ_ADMIN_TOKEN_FILE; `dev` prints an address that signs in.";
const STATUS_SECONDS = 2;
const TIMEOUT_SECONDS = 5;
const OLD_SECONDS = 60;
const SIDES = {
  outbox: {
    title: "Outbox",
    subtitle: "database → stream",
    flow: "Published / s",
    dead: "dead event",
    counts: {
      published: "published",
      duplicates: "duplicates suppressed by the stream",
      postponed: "failed attempts, retried",
      died: "became DEAD",
      leases_reaped: "expired leases removed",
    },
  },
  inbox: {
    title: "Inbox",
    subtitle: "stream → handler",
    flow: "Processed / s",
    dead: "dead letter",
    counts: {
      processed: "processed",
      skipped: "duplicates suppressed by the inbox",
      retried: "failed attempts, retried",
      dead_lettered: "dead-lettered",
      leases_lost: "leases lost, on both sides",
    },
  },
};
const ALARMING = ["died", "dead_lettered", "leases_lost"];
let last = 0;
let lost = 0;
let dead = "";

function show(status) {
  setClock(status.now);
  last = Date.now();
  lost = 0;
  const offered = status.offers === "all";
  document.title = `${status.health.state} – ${status.context} sea_mq_worker`;
  write(at("context"), status.context);
  const others = status.overview?.workers > 1 ? `, ${count(status.overview.workers)} workers on this database` : "";
  write(at("about"), `${status.worker}, version ${status.version}, up for ${duration(status.now - status.started)}${others}`);
  showHealth(status.health, offered ? status.slow_types : []);
  const { sides, totals, overview } = status;
  const isOld = Object.fromEntries(Object.entries(sides).map(([name, side]) => [name, status.now - side.at > OLD_SECONDS]));
  once(at("sides"), [sides, totals, overview, isOld], () => Object.entries(sides).map(([name, side]) => card(name, side, status, isOld[name])));
  showTable("consumers", ["Consumer", "To deliver", "Oldest", "In flight", "Redelivered", "State"], status.consumers, (each) => [
    `${each.stream}/${each.durable}`,
    count(each.pending),
    each.oldest_seconds == null ? "–" : duration(each.oldest_seconds),
    each.ack_pending_max > 0 ? `${count(each.ack_pending)} of ${count(each.ack_pending_max)}` : count(each.ack_pending),
    count(each.redelivered),
    each.error ?? (each.paused_seconds ? `paused for ${duration(each.paused_seconds)} more` : "active"),
  ]);
  showTable("errors", ["Side", "Times", "Error", "Last"], status.errors, (each) => [`${each.side}, ${each.effect}`, count(each.count), each.text, moment(each.last)]);
  at("closed").hidden = offered;
  offer(sides, offered);
  at("main").classList.remove("old");
}

function showHealth(health, resumable = []) {
  at("health").dataset.level = health.level;
  write(at("state"), health.state);
  write(at("text"), health.text);
  at("since").hidden = health.level === "good" || health.level === "idle" || !health.since;
  write(at("since"), `since ${atClock(health.since)}, for ${duration(present() - health.since)}`);
  const others = health.causes.slice(1);
  at("causes").hidden = !others.length;
  once(at("causes"), others, () => others.map(({ part, reason, since }) => {
    const rest = reason.startsWith(part) ? reason.slice(part.length) : `: ${reason}`;
    return element("li", {}, element("b", {}, part), rest, " ", moment(since));
  }));
  once(at("next-steps"), health.next_steps, () => health.next_steps.map(command));
  at("resumes").hidden = !resumable.length;
  once(at("resumes"), resumable, () => resumeButtons(resumable));
}

function card(name, side, status, isOld) {
  const { title, subtitle, flow, dead: noun, counts } = SIDES[name];
  const { sample, undelivered } = side;
  const capped = (number) => (number >= status.depth_max ? `≥ ${count(number)}` : count(number));
  const tile = (head, text) => element("div", { class: "tile" }, element("h3", {}, head), element("b", {}, text));
  const rate = side.per_second >= 10 ? Math.round(side.per_second) : side.per_second;
  const reasons = sample?.dead ? (status.overview?.reasons[name] ?? []) : [];
  const total = ([key, text]) => {
    const number = status.totals[key] ?? 0;
    return [element("dt", {}, text), element("dd", { class: number > 0 && ALARMING.includes(key) && "warn" }, count(number))];
  };
  return element(
    "section",
    { class: "side", "aria-label": title },
    element("div", { class: "head" }, element("h2", {}, title, element("small", {}, subtitle)), side.at && element("small", { class: `counted ${isOld ? "warn" : ""}` }, "counted ", moment(side.at))),
    element("div", { class: "tiles" },
      tile("Waiting", sample ? capped(sample.depth + undelivered) : "–"),
      tile("Oldest waits for", sample ? (sample.depth ? duration(sample.oldest_seconds) : "none") : "–"),
      tile(flow, count(rate))),
    element("div", { class: "dead" },
      undelivered > 0 && element("p", {}, `${count(undelivered)} of them are not delivered yet, and wait in the stream`),
      sample?.scheduled > 0 && element("p", {}, `${capped(sample.scheduled)} scheduled for later`),
      sample && element("p", { class: sample.dead > 0 && "warn" }, sample.dead ? `${capped(sample.dead)} ${noun}${sample.dead === 1 ? "" : "s"}` : `No ${noun}s`),
      element("ul", { class: "reasons" }, ...reasons.map((each) => element("li", {}, element("b", {}, count(each.count)), ` ${each.text}`)))),
    element("h3", {}, "This worker, since its start"),
    element("dl", {}, ...Object.entries(counts).flatMap(total)),
  );
}

function showTable(id, heads, items, cells) {
  at(id).hidden = !items.length;
  once(at(id).lastElementChild, items, () => [table(id, heads, items.map(cells))]);
}

/** Show the operator's controls; the first sample shows which list is non-empty. */
function offer(sides, offered) {
  const counted = Object.values(sides).every((side) => side.sample);
  at("search").hidden = at("forget").hidden = !offered;
  if (!offered || counted) at("stopped").hidden = !offered;
  const numbers = [["tab-events", "Dead events", sides.outbox], ["tab-letters", "Dead letters", sides.inbox]].map(([tab, text, side]) => {
    const number = side?.sample?.dead;
    write(at(tab), number ? `${text} (${count(number)})` : text);
    return number;
  });
  if (offered && counted && numbers.join() !== dead && refreshList(...numbers)) dead = numbers.join();
}

function fail(state, text) {
  lost ||= present();
  at("main").classList.add("old");
  showHealth({ level: "bad", state, text, since: lost, causes: [], next_steps: ["python -m sea_mq_worker doctor"] });
  document.title = `${state} – sea_mq_worker`;
}

const get = (path) => fetch(path, { headers: headers(), signal: AbortSignal.timeout(TIMEOUT_SECONDS * 1000) });

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
      fail("Broken", `The worker answered with status ${answer.status}.`);
    }
  } catch {
    fail("Gone", "The worker does not answer: it has stopped, is stuck, or is unreachable from this browser.");
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
  if (!locked) return;
  write(at("refused"), sessionStorage.getItem("token") ? "The token is wrong." : "");
  sessionStorage.removeItem("token");
  at("token").focus();
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
  if (at("detail").open) return;
  if (event.key === "/" && !event.target.closest("input") && !at("search").hidden) {
    event.preventDefault();
    at("lookup-id").select();
  } else if (event.key === "Escape") {
    at("found").hidden = true;
  }
});
document.addEventListener("visibilitychange", () => document.hidden || poll());
addEventListener("hashchange", () => {
  takeToken();
  poll();
});
takeToken();
initOperator();

/** Poll one request at a time; wait for a slow answer, and pause while the sign-in form is shown. */
async function run() {
  if (!document.hidden && at("login").hidden) await poll();
  setTimeout(run, STATUS_SECONDS * 1000);
}
run();
