// Numbers, durations and moments as people read them, and elements made of text alone: what comes from an
// event is never markup.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
const grouped = new Intl.NumberFormat("en");
const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

let skew = 0;

/** Take the worker's clock for the present: ages are told by it. */
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

/** A duration known to a tenth of itself. */
export function rough(seconds) {
  return duration(Number(seconds.toPrecision(2)));
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

/** Tell a moment by its age; the exact one is in the title. */
export function moment(given) {
  const seconds = typeof given === "number" ? given : Date.parse(given) / 1000;
  const at = new Date(seconds * 1000);
  const made = element("time", { datetime: at.toISOString(), title: exact.format(at) }, `${whole(present() - seconds)} ago`);
  made.dataset.at = seconds;
  return made;
}

/** Bring the ages of all moments shown up to date. */
export function grow() {
  for (const shown of document.querySelectorAll("time[data-at]")) {
    write(shown, `${whole(present() - Number(shown.dataset.at))} ago`);
  }
}

/** Change a text only where it differs: what is the same is not read aloud again. */
export function write(shown, text) {
  if (shown.textContent !== text) shown.textContent = text;
}

/** A command that can be copied. */
export function command(text) {
  const button = element("button", { type: "button", class: "copy", "aria-label": `Copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return element("div", { class: "command" }, element("code", {}, text), button);
}

export function table(caption, heads, rows) {
  return element(
    "table",
    {},
    element("caption", { class: "unseen" }, caption),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((cells) => row(heads, cells))),
  );
}

export function row(heads, cells) {
  const number = (cell) => /^[\d,]+( of [\d,]+)?$/.test(cell) && "number";
  return element("tr", {}, ...cells.map((cell, place) => element("td", { "data-head": heads[place], class: number(cell) }, cell)));
}
