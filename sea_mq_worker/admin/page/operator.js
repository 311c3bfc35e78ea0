// What an operator with the token can do: find an event, look through what has stopped, and change it.

import { at, button, command, count, element, moment, query, request, row, table, write } from "./elements.js";

const dialog = () => at("detail");
const opener = (label, show, text = "Show") => button(text, show, { "aria-label": label });
const failure = (error) => element("p", { class: "warn", role: "alert" }, error.message);

// --- Lists: dead events, dead letters with their groups, and the audit.

const LISTS = {
  events: {
    heads: ["Created", "Type", "Ordering key", "Failures", "Last error", ""],
    empty: "No event is DEAD.",
    filters: { type: "Type, exactly", error: "Part of the error" },
    path: (filters, last) => query("api/events", { ...filters, below: last?.seq }),
    cells: (item) => [moment(item.created_at), item.event_type, item.ordering_key ?? "–", count(item.failures),
      item.last_error ?? "–", opener(`Show event ${item.id}`, () => showEvent(item.id))],
  },
  letters: {
    heads: ["Since", "Reason", "Subject", "Attempts", "Detail", ""],
    empty: "There are no dead letters.",
    filters: { reason: "Reason, exactly" },
    path: (filters, last) => query("api/dead-letters", { ...filters, after: last?.seq }),
    cells: (item) => [moment(item.stored_at), item.reason, item.original_subject, count(item.attempts),
      item.detail || "–", opener(`Show dead letter ${item.seq}`, () => showLetter(item.seq))],
  },
  actions: {
    heads: ["When", "Who", "What", "Outcome", "Changed", "Why"],
    empty: "Nobody has changed anything by hand.",
    path: () => "api/actions",
    cells: (item) => [moment(item.at), item.actor, item.action, item.outcome, count(item.affected), item.reason],
  },
};
let list = LISTS.events;
let filters = {};
let chosen = false; // the user has selected a tab
let paged = false; // the list has more than its first page
let changed = false; // an action has changed what the list shows

/** Connect the controls; the page shows them once the worker offers them. */
export function initOperator() {
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    find(at("lookup-id").value.trim());
  });
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, place) => {
    const choose = (selected) => {
      chosen = true;
      select(selected).focus();
    };
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (step) choose(tabs.at((place + step) % tabs.length));
    });
  });
  dialog().addEventListener("click", (event) => event.target === dialog() && dialog().close());
  dialog().addEventListener("close", () => {
    if (changed && at("list").firstChild) {
      showFirst();
      document.querySelector("[role=tab][aria-selected=true]").focus(); // the row that had the focus is gone
    }
    changed = false;
  });
}

/** Refresh the list unless the user is reading it; return whether it was refreshed. Until the user selects a tab,
    the first non-empty list is shown. */
export function refreshList(deadEvents, deadLetters) {
  if (paged || at("list").contains(document.activeElement) || dialog().open) return false;
  if (!chosen && !deadEvents && deadLetters && list !== LISTS.letters) select(at("tab-letters"));
  else if (at("list").firstChild) showFirst();
  else select(at("tab-events"));
  return true;
}

function select(tab) {
  for (const each of document.querySelectorAll("[role=tab]")) {
    each.setAttribute("aria-selected", String(each === tab));
    each.tabIndex = each === tab ? 0 : -1;
  }
  list = LISTS[tab.id.replace("tab-", "")];
  filters = {};
  at("list").setAttribute("aria-labelledby", tab.id);
  at("list").replaceChildren(element("div", { class: "groups" }), ...filterForm(), element("div", { class: "wide" }));
  showFirst();
  return tab;
}

function filterForm() {
  if (!list.filters) return [];
  const inputs = Object.entries(list.filters).map(([name, text]) => element("input", { name, placeholder: text, "aria-label": text, maxlength: 200 }));
  return [element("form", { class: "filter", onsubmit: (event) => {
    event.preventDefault();
    filters = Object.fromEntries(inputs.map((input) => [input.name, input.value]));
    showFirst();
  } }, ...inputs, element("button", {}, "Filter"))];
}

/** Show the first page of the list and then its groups, because the worker serves one request at a time. */
async function showFirst() {
  const [groups, body, shown] = [at("list").firstChild, at("list").lastChild, list];
  paged = false;
  try {
    const page = await request(shown.path(filters));
    const rows = table("", shown.heads, page.items.map(shown.cells));
    body.replaceChildren(page.items.length ? rows : element("p", { class: "soft" }, shown.empty));
    addMore(shown, body, rows, page);
  } catch (error) {
    body.replaceChildren(failure(error), button("Try again", showFirst));
  }
  if (shown === LISTS.letters && body.isConnected) await showGroups(groups);
}

function addMore(shown, body, rows, page) {
  if (!page.more) return;
  let busy = false; // a disabled button would lose the focus
  const more = button("More", async () => {
    if (busy) return;
    busy = true;
    try {
      const next = await request(shown.path(filters, page.items.at(-1)));
      const added = next.items.map((item) => row(shown.heads, shown.cells(item)));
      rows.tBodies[0].append(...added);
      paged = true;
      more.remove();
      addMore(shown, body, rows, next);
      added[0]?.querySelector("button")?.focus();
    } catch (error) {
      busy = false;
      write(more, `More (${error.message})`);
    }
  });
  body.append(more);
}

const GROUP_ACTIONS = {
  redrive: ["Redrive", "sent to the handler again, one after the other. The run stops if the handler fails a whole batch"],
  purge: ["Purge", "deleted for good; the inbox records that their messages are abandoned"],
};

/** Show the groups of dead letters, with buttons to change a whole group. */
async function showGroups(place) {
  const heads = ["Reason", "Subject", "How many", "Detail of the first", "Since", ""];
  const buttons = (group) => Object.keys(GROUP_ACTIONS).filter((name) => name !== "redrive" || group.can_be_handled).map((name) => groupButton(name, group));
  const cells = (group) => [group.reason, group.subject, count(group.count), group.detail || "–", moment(group.oldest_at), element("span", { class: "buttons" }, ...buttons(group))];
  try {
    const found = await request("api/dead-letter-groups");
    const more = found.more ? [element("p", { class: "soft" }, "Counted from the oldest 2,000; more dead letters follow.")] : [];
    place.replaceChildren(...(found.items.length ? [table("Groups", heads, found.items.map(cells)), ...more] : []));
  } catch (error) {
    place.replaceChildren(failure(error));
  }
}

function groupButton(name, group) {
  const [title, text] = GROUP_ACTIONS[name];
  const all = `${title} all ${count(group.count)}`;
  return opener(`${all} of ${group.reason}, ${group.subject}`, () => {
    head(all);
    dialog().append(
      element("p", {}, `${count(group.count)} dead letters of ${group.reason}, ${group.subject}, are ${text}. Closing this window stops the run.`),
      actionForm(all, (why, show) => changeGroup(`api/dead-letter-groups/${name}`, group, why, show)),
    );
  }, all);
}

// --- Search for one id.

async function find(text) {
  if (!text) return;
  const place = at("found");
  const close = button("Close", () => {
    place.hidden = true;
    at("lookup-id").focus();
  });
  const title = element("h2", { id: "found-title" }, text);
  place.hidden = false;
  place.replaceChildren(title, element("p", { class: "soft" }, "Searching …"));
  try {
    const found = await request(query("api/lookup", { id: text }));
    write(title, found.id);
    place.replaceChildren(title, ...describeFound(found, close));
  } catch (error) {
    place.replaceChildren(title, failure(error), close);
  }
  place.focus();
}

function describeFound(found, close) {
  const letters = found.dead_letters.map(({ seq }) => opener(`Show dead letter ${seq}`, () => showLetter(seq), `Show dead letter ${seq}`));
  const again = (id) => () => {
    at("lookup-id").value = id;
    find(id);
  };
  return [
    ...found.answer.map((text, number) => element("p", number ? {} : { class: "answer" }, text)),
    element("ul", {}, ...found.matches.map(({ id, side, state, name, at: time }) => element("li", {}, button(id, again(id), { class: "link" }), ` ${side}, ${state}: ${name} `, moment(time)))),
    element("ol", { class: "steps" }, ...found.steps.map((step) => element("li", {}, moment(step.at), ` ${step.text}`))),
    ...found.not_checked.map((text) => element("p", { class: "warn" }, `Not checked: ${text}`)),
    ...found.next_steps.map(command),
    element("p", { class: "buttons" }, found.event && opener(`Show event ${found.id}`, () => showEvent(found.id), "Show the event"), ...letters, close),
  ];
}

// --- One event or dead letter, with the form that changes it.

async function showEvent(id) {
  const found = await open(`Event ${id}`, `api/events/${id}`);
  if (!found) return;
  const { headers, metadata, ...fields } = found.fields;
  describe(fields, { headers, metadata, payload: found.body.payload }, found.body);
  if (["DEAD", "PUBLISHED"].includes(fields.state)) dialog().append(actionForm("Publish it again", (why) => request(`api/events/${id}/replay`, why)));
}

async function showLetter(seq) {
  const found = await open(`Dead letter ${seq}`, `api/dead-letters/${seq}`);
  if (!found) return;
  const { headers, can_be_handled: canBeHandled, ...fields } = found.fields;
  describe(fields, { headers: JSON.stringify(headers), payload: found.body.payload }, found.body);
  dialog().append(canBeHandled
    ? actionForm("Send it to the handler again", (why) => request(`api/dead-letters/${seq}/redrive`, why))
    : element("p", { class: "warn" }, "It can never be handled as it is: publish it corrected, under a new ID."));
}

/** Make a button per slow event type that ends its slow pace, and one for all if there are several. */
export function resumeButtons(types) {
  return [...types, ...(types.length > 1 ? [""] : [])].map((type) => {
    const title = `Resume ${type || "all slow event types"}`;
    return opener(title, () => {
      head(title);
      dialog().append(
        element("p", {}, "This ends the slow pace in every worker. Fix the handler first: a type that still fails becomes slow again."),
        actionForm(title, (why) => request("api/slow-types/resume", { ...why, event_type: type })),
      );
    }, title);
  });
}

function head(title) {
  const close = button("Close", () => dialog().close(), { class: "close" });
  dialog().replaceChildren(element("div", { class: "head" }, element("h2", { id: "detail-title" }, title), close));
  if (!dialog().open) dialog().showModal();
}

async function open(title, path) {
  head(title);
  try {
    return await request(path);
  } catch (error) {
    dialog().append(failure(error));
    return null;
  }
}

function describe(fields, texts, body) {
  const given = Object.entries(fields).filter(([, value]) => value !== null && value !== "" && value !== false);
  const isTime = (value) => /^\d{4}-\d\d-\d\dT/.test(value);
  dialog().append(element("dl", { class: "fields" }, ...given.flatMap(([name, value]) => [
    element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, isTime(value) ? moment(value) : String(value)),
  ])));
  const note = [`${count(body.payload_bytes)} bytes`, body.payload_cut && "only the beginning", body.payload_encoding === "base64" && "not text: base64"];
  for (const [name, text] of Object.entries(texts)) {
    if (text === null || text === "{}") continue;
    const about = element("small", {}, name === "payload" ? note.filter(Boolean).join(", ") : "");
    dialog().append(element("h3", {}, name, about), element("pre", { tabindex: 0, "aria-label": name }, pretty(text)));
  }
}

/** Indent JSON. JSON.rawJSON keeps each number as it is written; without it the text stays as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text, (_, value, { source }) => (typeof value === "number" ? JSON.rawJSON(source) : value)), null, 2);
  } catch {
    return text;
  }
}

// --- Changes: name and reason first, then progress and result.

/** Make the form; `run` gets name, reason and a function that shows progress, and returns the result. */
function actionForm(title, run) {
  const actor = element("input", { id: "actor", required: true, maxlength: 80, autocomplete: "username", value: sessionStorage.getItem("actor") ?? "" });
  const reason = element("input", { id: "reason", required: true, maxlength: 500, autocomplete: "off" });
  const act = element("button", { class: "act" }, title); // if it were disabled, it would lose the focus
  const result = element("p", { role: "status" });
  const show = (text, kind = "", off = true) => {
    write(result, text);
    result.className = kind;
    result.scrollIntoView({ block: "nearest" });
    act.setAttribute("aria-disabled", String(off));
  };
  const onsubmit = async (event) => {
    event.preventDefault();
    if (act.getAttribute("aria-disabled") === "true") return;
    sessionStorage.setItem("actor", actor.value);
    show("Running …");
    try {
      const { done, text } = await run({ actor: actor.value, reason: reason.value }, show);
      changed = true;
      show(`${done ? "Done" : "Not done"}: ${text}.`, done ? "good" : "warn", done);
    } catch (error) {
      show(error.message, "warn", false);
    }
  };
  return element("form", { class: "again", onsubmit }, element("p", {}, "The audit records name and reason."),
    element("label", { for: "actor" }, "Your name"), actor, element("label", { for: "reason" }, "Reason"), reason, act, result);
}

/** Change a group in batches until its end, until the handler fails a whole batch, or until the window closes. */
async function changeGroup(path, group, why, show) {
  const sent = { ...why, dlq_reason: group.reason, subject: group.subject, last: group.last };
  let [after, done, failed] = [0, 0, 0];
  for (;;) {
    const progress = await request(path, { ...sent, after });
    changed = true;
    after = progress.after;
    done += progress.done;
    failed += progress.failed;
    const text = `${count(done)} of ${count(group.count)}${failed ? `, ${count(failed)} without an effect: ${progress.text}` : ""}`;
    if (!progress.more) return { done: !failed, text };
    if (progress.failed && !progress.done) return { done: false, text: `stopped, ${text}` };
    if (!dialog().open) return { done: false, text: `stopped at ${text}` };
    show(`${text} …`);
  }
}
