// Requests to the worker, formats of numbers and times, and elements built from text alone, so that an event's
// content is never markup.

export const at = (id) => document.getElementById(id);

/** The token is in the tab's session storage. */
export function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** Send a request; a body makes it a POST. */
export async function request(path, body) {
  const sent = body && { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(path, { ...sent, headers: { ...headers(), ...(body && { "content-type": "application/json" }) } }).catch(() => {
    throw new Error("The worker does not answer");
  });
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(data.error ?? `The worker answered with status ${answer.status}`);
  return data;
}

export function query(path, given) {
  const known = Object.entries(given).filter(([, value]) => value !== undefined && value !== "");
  return known.length ? `${path}?${new URLSearchParams(known)}` : path;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
const grouped = new Intl.NumberFormat("en");
const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
let skew = 0;

/** Use the worker's clock as the present for all ages. */
export function setClock(seconds) {
  skew = seconds - Date.now() / 1000;
}

export function present() {
  return Date.now() / 1000 + skew;
}

export function count(number) {
  return number === null || number === undefined ? "–" : grouped.format(number);
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  const [size, unit] = UNITS.find(([size]) => seconds >= size);
  return `${Number((seconds / size).toFixed(seconds >= 10 * size ? 0 : 1))} ${unit}`;
}

export function atClock(seconds) {
  const given = new Date(seconds * 1000);
  const today = new Date(present() * 1000).toDateString() === given.toDateString();
  return today ? clock.format(given) : `${day.format(given)}, ${clock.format(given)}`;
}

/** Make an element; children are elements or texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function button(text, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, text);
}

/** Show a time by its age, with the exact time in the title. */
export function moment(given) {
  const seconds = typeof given === "number" ? given : Date.parse(given) / 1000;
  const time = new Date(seconds * 1000);
  return element("time", { datetime: time.toISOString(), title: exact.format(time), "data-at": seconds }, `${duration(present() - seconds)} ago`);
}

/** Update the ages of all shown times. */
export function updateAges() {
  for (const shown of document.querySelectorAll("time[data-at]")) write(shown, `${duration(present() - Number(shown.dataset.at))} ago`);
}

/** Change a text only if it differs, so that a screen reader does not repeat it. */
export function write(shown, text) {
  if (shown.textContent !== text) shown.textContent = text;
}

/** Replace the children only if their data has changed, so that nothing moves and no selection is lost. */
export function once(shown, data, make) {
  const text = JSON.stringify(data);
  if (shown.dataset.data === text) return;
  shown.dataset.data = text;
  shown.replaceChildren(...make());
}

/** Show a command with a button that copies it. */
export function command(text) {
  const copy = button("Copy", async () => {
    write(copy, await navigator.clipboard.writeText(text).then(() => "Copied", () => "Select and copy"));
    setTimeout(() => write(copy, "Copy"), 2000);
  }, { class: "copy", "aria-label": `Copy ${text}` });
  return element("div", { class: "command" }, element("code", {}, text), copy);
}

export function table(caption, heads, rows) {
  return element(
    "table",
    {},
    element("caption", { class: "visually-hidden" }, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((cells) => row(heads, cells))),
  );
}

export function row(heads, cells) {
  const number = (cell) => /^[\d,]+( of [\d,]+)?$/.test(cell) && "number";
  return element("tr", {}, ...cells.map((cell, place) => element("td", { "data-head": heads[place], class: number(cell) }, cell)));
}
