// Panel for the operator: lookup of an event, lists of dead events and dead letters, and their changes.

import { actionForm, changeGroup } from "./action_form.js";
import { query, request } from "./api.js";
import { count, command, element, moment, row, table, write } from "./rendering.js";

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

/** Connect the panel's controls; the page shows them once the worker offers them. */
export function initOperatorPanel() {
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    find(at("lookup-id").value.trim());
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

/** Refresh the list unless the user is reading it; return whether it was refreshed. Until the user selects a tab,
    the first non-empty list is shown. */
export function refreshList(deadEvents, deadLetters) {
  const isRead = paged || at("list").contains(document.activeElement) || dialog().open;
  if (isRead) return false;
  if (!chosen && !deadEvents && deadLetters && selected !== "letters") select(at("tab-letters"));
  else if (at("list").firstChild) showFirst();
  else loadList();
  return true;
}

/** Reload the first page with the same filters. */
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

/** Show a list and then its groups, because the worker serves one request at a time. */
async function fill(tab, body) {
  await fillList(tab, body);
  const groups = at("list").querySelector(".groups");
  if (groups && body.isConnected) await fillGroups(groups);
}

/** Show the first page of a list; the next ones are appended. */
async function fillList(tab, body) {
  paged = false;
  try {
    const page = await request(tab.path(filters));
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
      const next = await request(tab.path(filters, page.items.at(-1)));
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
  place.replaceChildren(element("h2", { id: "found-title" }, text), element("p", { class: "soft" }, "Searching …"));
  try {
    showFound(place, await request(query("api/lookup", { id: text })));
  } catch (error) {
    place.replaceChildren(element("h2", { id: "found-title" }, text), element("p", { class: "warn", role: "alert" }, error.message), closer(place));
  }
  place.focus();
}

function showFound(place, found) {
  const buttons = [];
  if (found.event) buttons.push(opener(`Show event ${found.id}`, () => showEvent(found.id), "Show the event"));
  for (const letter of found.dead_letters) {
    buttons.push(opener(`Show dead letter ${letter.seq}`, () => showLetter(letter.seq), `Show dead letter ${letter.seq}`));
  }
  const matches = found.matches.map((match) => element("li", {}, element("button", { type: "button", class: "link", onclick: () => {
    at("lookup-id").value = match.id;
    find(match.id);
  } }, match.id), ` ${match.side}, ${match.state}: ${match.name} `, moment(match.at)));
  place.replaceChildren(
    element("h2", { id: "found-title" }, found.id),
    ...found.answer.map((text, number) => element("p", number ? {} : { class: "answer" }, text)),
    ...(matches.length ? [element("ul", {}, ...matches)] : []),
    element("ol", { class: "steps" }, ...found.steps.map((step) => element("li", {}, moment(step.at), ` ${step.text}`))),
    ...found.not_checked.map((text) => element("p", { class: "warn" }, `Not checked: ${text}`)),
    ...found.next_steps.map(command),
    element("p", { class: "buttons" }, ...buttons, closer(place)),
  );
}

function closer(place) {
  return element("button", { type: "button", onclick: () => {
    place.hidden = true;
    at("lookup-id").focus();
  } }, "Close");
}

async function showEvent(id) {
  const found = await open(`Event ${id}`, `api/events/${id}`);
  if (!found) return;
  const { headers: sent, metadata, ...fields } = found.fields;
  const again = fields.state === "DEAD" || fields.state === "PUBLISHED";
  describe(fields, { headers: sent, metadata, payload: found.body.payload }, found.body);
  if (again) dialog().append(actionForm("Publish it again", action(`api/events/${id}/replay`)));
}

async function showLetter(seq) {
  const found = await open(`Dead letter ${seq}`, `api/dead-letters/${seq}`);
  if (!found) return;
  const { headers: sent, can_be_handled: canBeHandled, ...fields } = found.fields;
  describe(fields, { headers: JSON.stringify(sent, null, 2), payload: found.body.payload }, found.body);
  if (canBeHandled) dialog().append(actionForm("Send it to the handler again", action(`api/dead-letters/${seq}/redrive`)));
  else dialog().append(element("p", { class: "warn" }, "It can never be handled as it is: publish it corrected, under a new ID."));
}

function action(path, given = {}) {
  return async (why) => {
    const outcome = await request(path, { ...why, ...given });
    changed = true;
    return outcome;
  };
}

/** Make a button per slow event type that ends its slow pace, and one for all if there are several. */
export function resumeButtons(types) {
  const all = types.length > 1 ? [""] : [];
  return [...types, ...all].map((type) => {
    const title = `Resume ${type || "all slow event types"}`;
    return opener(title, () => {
      head(title);
      dialog().append(
        element("p", {}, "This ends the slow pace in every worker. Fix the handler first: a type that still fails becomes slow again."),
        actionForm(title, action("api/slow-types/resume", { event_type: type })),
      );
    }, title);
  });
}

/** Show the groups of dead letters, with buttons to change a whole group. */
async function fillGroups(place) {
  try {
    const found = await request("api/dead-letter-groups");
    const heads = ["Reason", "Subject", "How many", "Detail of the first", "Since", ""];
    const cells = (group) => [group.reason, group.subject, count(group.count), group.detail || "–", moment(group.oldest_at),
      element("span", { class: "buttons" }, ...Object.keys(GROUP_ACTIONS).filter((name) => name !== "redrive" || group.can_be_handled).map((name) => groupButton(name, group)))];
    const more = found.more ? [element("p", { class: "soft" }, "Counted from the oldest 2,000; more dead letters follow.")] : [];
    place.replaceChildren(...(found.items.length ? [table("Groups", heads, found.items.map(cells)), ...more] : []));
  } catch (error) {
    place.replaceChildren(element("p", { class: "warn" }, `Groups: ${error.message}`));
  }
}

const GROUP_ACTIONS = {
  redrive: ["Redrive", "sent to the handler again, one after the other. The run stops if the handler fails a whole batch"],
  purge: ["Purge", "deleted for good; the inbox records that their messages are abandoned"],
};

function groupButton(name, group) {
  const [title, text] = GROUP_ACTIONS[name];
  const all = `${title} all ${count(group.count)}`;
  const label = `${all} of ${group.reason}, ${group.subject}`;
  return opener(label, () => {
    head(all);
    const run = (why, show) => {
      changed = true;
      return changeGroup(`api/dead-letter-groups/${name}`, group, why, show, () => dialog().open);
    };
    dialog().append(
      element("p", {}, `${count(group.count)} dead letters of ${group.reason}, ${group.subject}, are ${text}. Closing this window stops the run.`),
      actionForm(all, run),
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
    return await request(path);
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
  return [size, about.payload_cut && "only the beginning", about.payload_encoding === "base64" && "not text: base64"].filter(Boolean).join(", ");
}

/** Indent JSON. JSON.rawJSON keeps each number as it is written; without it the text stays as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text, (_, value, { source }) => (typeof value === "number" ? JSON.rawJSON(source) : value)), null, 2);
  } catch {
    return text;
  }
}

function opener(label, show, text = "Show") {
  return element("button", { type: "button", "aria-label": label, onclick: show }, text);
}
