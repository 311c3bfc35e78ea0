// What is asked with the token: where an event is, what stopped for good, and sending it again.

import { actForm, throughGroup } from "./acts.js";
import { ask, query } from "./asking.js";
import { count, command, element, moment, row, table, write } from "./words.js";

const at = (id) => document.getElementById(id);
const dialog = () => at("detail");

const TABS = {
  events: {
    heads: ["Created", "Type", "Ordering key", "Failures", "Last error", ""],
    empty: "No event is DEAD.",
    filters: [["type", "Type, exactly"], ["error", "Part of the error"]],
    path: (filters, last) => query("api/events", { ...filters, below: last?.seq }),
    cells: (item) => [moment(item.created_at), item.event_type, item.ordering_key ?? "–", count(item.failures),
      item.last_error ?? "–", opener(`Show event ${item.id}`, () => showEvent(item.id))],
  },
  letters: {
    heads: ["Since", "Reason", "Subject", "Attempts", "Detail", ""],
    empty: "There are no dead letters.",
    groups: true,
    filters: [["reason", "Reason, exactly"]],
    path: (filters, last) => query("api/dead-letters", { ...filters, after: last?.seq }),
    cells: (item) => [moment(item.stored_at), item.reason, item.original_subject, count(item.attempts),
      item.detail || "–", opener(`Show dead letter ${item.seq}`, () => showLetter(item.seq))],
  },
  actions: {
    heads: ["When", "Who", "What", "Outcome", "Changed", "Why"],
    empty: "Nobody has changed anything by hand.",
    filters: [],
    path: () => "api/actions",
    cells: (item) => [moment(item.at), item.actor, item.action, item.outcome, count(item.affected), item.reason],
  },
};
let selected = "events";
let filters = {};
let chosen = false;
let paged = false;
let changed = false;

/** Make the desk's controls work; they are shown once the worker offers them. */
export function openDesk() {
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    find(at("wanted").value.trim());
  });
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => {
      chosen = true;
      select(tab);
    });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      chosen ||= Boolean(step);
      if (step) select(tabs.at((place + step) % tabs.length)).focus();
    });
  });
  dialog().addEventListener("click", (event) => event.target === dialog() && dialog().close());
  dialog().addEventListener("close", () => {
    const isStale = changed && at("list").firstChild;
    changed = false;
    if (!isStale) return;
    showFirst();
    document.querySelector("[role=tab][aria-selected=true]").focus(); // the row that had the focus is gone
  });
}

function loadList() {
  filters = {};
  const tab = TABS[selected];
  const form = filterForm(tab);
  const body = element("div", { class: "wide" });
  const groups = tab.groups ? [element("div", { class: "groups" })] : [];
  at("list").replaceChildren(...groups, ...(form ? [form] : []), body);
  return fill(tab, body);
}

/** Bring the list up to date unless somebody is reading it; return whether that was done. Who has not chosen gets the one
    that has something. */
export function refreshList(deadEvents, deadLetters) {
  const isRead = paged || at("list").contains(document.activeElement) || dialog().open;
  if (isRead) return false;
  if (!chosen && !deadEvents && deadLetters && selected !== "letters") select(at("tab-letters"));
  else if (at("list").firstChild) showFirst();
  else loadList();
  return true;
}

/** Show the first page anew, filtered as before. */
function showFirst() {
  return fill(TABS[selected], at("list").querySelector(".wide"));
}

function select(tab) {
  for (const each of document.querySelectorAll("[role=tab]")) {
    each.setAttribute("aria-selected", String(each === tab));
    each.tabIndex = each === tab ? 0 : -1;
  }
  selected = tab.id.replace("tab-", "");
  at("list").setAttribute("aria-labelledby", tab.id);
  loadList();
  return tab;
}

function filterForm(tab) {
  if (!tab.filters.length) return null;
  const inputs = tab.filters.map(([name, text]) => element("input", { name, placeholder: text, "aria-label": text, maxlength: 200 }));
  return element("form", { class: "filter", onsubmit: (event) => {
    event.preventDefault();
    filters = Object.fromEntries(inputs.filter((input) => input.value).map((input) => [input.name, input.value]));
    showFirst();
  } }, ...inputs, element("button", {}, "Filter"));
}

/** Show a list and then, for the desk answers one question after the other, its groups. */
async function fill(tab, body) {
  await fillList(tab, body);
  const groups = at("list").querySelector(".groups");
  if (groups && body.isConnected) await fillGroups(groups);
}

/** Show the first page of a list; each further one is added below. */
async function fillList(tab, body) {
  paged = false;
  try {
    const page = await ask(tab.path(filters));
    if (!page.items.length) return body.replaceChildren(element("p", { class: "soft" }, tab.empty));
    const shown = table("", tab.heads, page.items.map(tab.cells));
    body.replaceChildren(shown);
    addMore(tab, body, shown, page);
  } catch (error) {
    const again = element("button", { type: "button", onclick: () => fill(tab, body) }, "Try again");
    body.replaceChildren(element("p", { class: "warn", role: "alert" }, error.message), again);
  }
}

function addMore(tab, body, shown, page) {
  if (!page.more) return;
  let busy = false;
  const button = element("button", { type: "button", onclick: async () => {
    if (busy) return;
    busy = true;
    try {
      const next = await ask(tab.path(filters, page.items.at(-1)));
      const rows = next.items.map((item) => row(tab.heads, tab.cells(item)));
      shown.tBodies[0].append(...rows);
      paged = true;
      button.remove();
      addMore(tab, body, shown, next);
      rows[0]?.querySelector("button")?.focus();
    } catch (error) {
      busy = false;
      write(button, `More (${error.message})`);
    }
  } }, "More");
  body.append(button);
}

async function find(text) {
  const place = at("found");
  if (!text) return;
  place.hidden = false;
  place.replaceChildren(element("h2", { id: "found-title" }, text), element("p", { class: "soft" }, "Looking …"));
  try {
    showFound(place, await ask(query("api/where", { id: text })));
  } catch (error) {
    place.replaceChildren(element("h2", { id: "found-title" }, text), element("p", { class: "warn", role: "alert" }, error.message), closer(place));
  }
  place.focus();
}

function showFound(place, found) {
  const buttons = [];
  if (found.event) buttons.push(opener(`Show event ${found.id}`, () => showEvent(found.id), "Show the event"));
  for (const letter of found.letters) {
    buttons.push(opener(`Show dead letter ${letter.seq}`, () => showLetter(letter.seq), `Show dead letter ${letter.seq}`));
  }
  const matches = found.matches.map((match) => element("li", {}, element("button", { type: "button", class: "link", onclick: () => {
    at("wanted").value = match.id;
    find(match.id);
  } }, match.id), ` ${match.side}, ${match.state}: ${match.name} `, moment(match.at)));
  place.replaceChildren(
    element("h2", { id: "found-title" }, found.id),
    ...found.answer.map((text, number) => element("p", number ? {} : { class: "answer" }, text)),
    ...(matches.length ? [element("ul", {}, ...matches)] : []),
    element("ol", { class: "steps" }, ...found.steps.map((step) => element("li", {}, moment(step.at), ` ${step.text}`))),
    ...found.unseen.map((text) => element("p", { class: "warn" }, `Not looked at: ${text}`)),
    ...found.next.map(command),
    element("p", { class: "buttons" }, ...buttons, closer(place)),
  );
}

function closer(place) {
  return element("button", { type: "button", onclick: () => {
    place.hidden = true;
    at("wanted").focus();
  } }, "Close");
}

async function showEvent(id) {
  const event = await open(`Event ${id}`, `api/events/${id}`);
  if (!event) return;
  const again = event.state === "DEAD" || event.state === "PUBLISHED";
  const { payload, payload_encoding, payload_bytes, payload_cut, headers: sent, metadata, ...fields } = event;
  describe(fields, { headers: sent, metadata, payload }, { payload_bytes, payload_cut, payload_encoding });
  if (again) dialog().append(actForm("Publish it again", act(`api/events/${id}/replay`)));
}

async function showLetter(seq) {
  const letter = await open(`Dead letter ${seq}`, `api/dead-letters/${seq}`);
  if (!letter) return;
  const { payload, payload_encoding, payload_bytes, payload_cut, headers: sent, ...fields } = letter;
  describe(fields, { headers: JSON.stringify(sent, null, 2), payload }, { payload_bytes, payload_cut, payload_encoding });
  dialog().append(actForm("Hand it to the handler again", act(`api/dead-letters/${seq}/redrive`)));
}

function act(path, given = {}) {
  return async (why) => {
    const outcome = await ask(path, { ...why, ...given });
    changed = true;
    return outcome;
  };
}

/** Make the buttons that end a slow pace: one for each event type, and one for all where there are several. */
export function resumeButtons(types) {
  const all = types.length > 1 ? [""] : [];
  return [...types, ...all].map((type) => {
    const title = `Resume ${type || "all slow event types"}`;
    return opener(title, () => {
      head(title);
      dialog().append(
        element("p", {}, "It ends the slow pace in every worker. Mend the handler first: what it still fails is slow again."),
        actForm(title, act("api/slow-types/resume", { event_type: type })),
      );
    }, title);
  });
}

/** Show what dead letters have in common, with what can be done to all of a kind. */
async function fillGroups(place) {
  try {
    const found = await ask("api/letter-groups");
    const heads = ["Reason", "Subject", "How many", "Detail of the first", "Since", ""];
    const cells = (group) => [group.reason, group.subject, count(group.count), group.detail || "–", moment(group.oldest_at),
      element("span", { class: "buttons" }, ...Object.keys(GROUP_ACTS).map((name) => groupButton(name, group)))];
    const more = found.more ? [element("p", { class: "soft" }, "Of the oldest 2,000; there are more behind them.")] : [];
    place.replaceChildren(...(found.items.length ? [table("Groups", heads, found.items.map(cells)), ...more] : []));
  } catch (error) {
    place.replaceChildren(element("p", { class: "warn" }, `Groups: ${error.message}`));
  }
}

const GROUP_ACTS = {
  redrive: ["Redrive", "handed to the handler again, one after the other. It stops when the handler refuses all of a few"],
  purge: ["Purge", "deleted for good; the inbox notes that their messages are given up"],
};

function groupButton(name, group) {
  const [title, text] = GROUP_ACTS[name];
  const all = `${title} all ${count(group.count)}`;
  const label = `${all} of ${group.reason}, ${group.subject}`;
  return opener(label, () => {
    head(all);
    const run = (why, tell) => {
      changed = true;
      return throughGroup(`api/letter-groups/${name}`, group, why, tell, () => dialog().open);
    };
    dialog().append(
      element("p", {}, `${count(group.count)} dead letters of ${group.reason}, ${group.subject}, are ${text}. Closing this stops it.`),
      actForm(all, run),
    );
  }, all);
}

function head(title) {
  const close = element("button", { type: "button", class: "close", onclick: () => dialog().close() }, "Close");
  dialog().replaceChildren(element("div", { class: "head" }, element("h2", { id: "detail-title" }, title), close));
  if (!dialog().open) dialog().showModal();
}

async function open(title, path) {
  head(title);
  try {
    return await ask(path);
  } catch (error) {
    dialog().append(element("p", { class: "warn", role: "alert" }, error.message));
    return null;
  }
}

function describe(fields, texts, about) {
  const list = element("dl", { class: "fields" });
  for (const [name, value] of Object.entries(fields)) {
    if (value === null || value === "" || value === false) continue;
    const isTime = typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value);
    list.append(element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, isTime ? moment(value) : String(value)));
  }
  dialog().append(list);
  for (const [name, text] of Object.entries(texts)) {
    if (text === null || text === undefined || text === "{}") continue;
    const note = name === "payload" ? payloadNote(about) : "";
    dialog().append(element("h3", {}, name, element("small", {}, note)), element("pre", { tabindex: 0, "aria-label": name }, pretty(text)));
  }
}

function payloadNote(about) {
  const size = `${count(about.payload_bytes)} bytes`;
  return [size, about.payload_cut && "cut here", about.payload_encoding === "base64" && "no text: base64"].filter(Boolean).join(", ");
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function opener(label, show, text = "Show") {
  return element("button", { type: "button", "aria-label": label, onclick: show }, text);
}
