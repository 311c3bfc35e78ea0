// Formats of numbers, durations and times, and elements built from text alone, so that an event's content is
// never markup.

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

export function rate(number) {
  if (number === null || number === undefined) return "–";
  return number >= 10 || number === 0 ? grouped.format(Math.round(number)) : number.toFixed(1);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0005) return "0 s";
  if (seconds < 0.9995) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Number((seconds / size).toFixed(seconds >= 10 * size ? 0 : 1))} ${unit}`;
}

export function whole(seconds) {
  return seconds < 60 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds);
}

export function atClock(seconds) {
  const moment = new Date(seconds * 1000);
  const today = new Date(present() * 1000).toDateString() === moment.toDateString();
  return today ? clock.format(moment) : `${day.format(moment)}, ${clock.format(moment)}`;
}

/** Make an element; children are elements or texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Show a time by its age, with the exact time in the title. */
export function moment(given) {
  const seconds = typeof given === "number" ? given : Date.parse(given) / 1000;
  const at = new Date(seconds * 1000);
  const made = element("time", { datetime: at.toISOString(), title: exact.format(at) }, `${whole(present() - seconds)} ago`);
  made.dataset.at = seconds;
  return made;
}

/** Update the ages of all shown times. */
export function updateAges() {
  for (const shown of document.querySelectorAll("time[data-at]")) {
    write(shown, `${whole(present() - Number(shown.dataset.at))} ago`);
  }
}

/** Change a text only if it differs, so that a screen reader does not repeat it. */
export function write(shown, text) {
  if (shown.textContent !== text) shown.textContent = text;
}

/** Replace the children only if their data has changed. */
export function once(shown, data, make) {
  const text = JSON.stringify(data);
  if (shown.dataset.data === text) return;
  shown.dataset.data = text;
  shown.replaceChildren(...make());
}

/** Show a command with a button that copies it. */
export function command(text) {
  const button = element("button", { type: "button", class: "copy", "aria-label": `Copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return element("div", { class: "command" }, element("code", {}, text), button);
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
