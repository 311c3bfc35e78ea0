// Line charts of the history, up to an hour.

import { atClock, element, whole, write } from "./rendering.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 40;
const SAMPLES_MIN = 20;

/** Make a chart; `format` turns a value into text. */
export function chart(name, format) {
  const area = part("path", { class: "area" });
  const line = part("path", { class: "line" });
  const mark = part("line", { class: "mark", y1: 0, y2: HEIGHT, x1: -1, x2: -1 });
  const drawn = part("svg", { preserveAspectRatio: "none", role: "slider", tabindex: 0, "aria-valuemin": 0 });
  drawn.append(area, line, mark);
  const left = element("span");
  const right = element("span", {}, "now");
  const shown = element("figure", {}, drawn, element("figcaption", { "aria-hidden": "true" }, left, right));
  const made = { shown, drawn, area, line, left, right, mark, name, format, series: [], size: 0, history: null, place: null };
  drawn.addEventListener("pointermove", (event) => {
    const box = drawn.getBoundingClientRect();
    point(made, Math.round(((event.clientX - box.left) / box.width) * (made.size - 1)));
  });
  drawn.addEventListener("pointerleave", () => rest(made));
  drawn.addEventListener("blur", () => rest(made));
  drawn.addEventListener("keydown", (event) => {
    const first = made.size - made.series.length;
    const now = made.place ?? made.size - 1;
    const place = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: first, End: made.size - 1 }[event.key];
    if (place === undefined) return;
    event.preventDefault();
    point(made, Math.min(Math.max(place, first), made.size - 1));
  });
  return made;
}

export function draw(made, history, series) {
  const size = Math.max(series.length, SAMPLES_MIN);
  Object.assign(made, { history, series, size });
  const known = series.filter((value) => value !== null);
  const top = Math.max(...known, 0) || 1;
  const first = size - series.length;
  made.drawn.setAttribute("viewBox", `0 0 ${size - 1} ${HEIGHT}`);
  const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 4);
  let line = "";
  let area = "";
  let begun = null;
  series.forEach((value, place) => {
    const x = first + place;
    if (value !== null) {
      line += `${begun === null ? "M" : "L"}${x} ${y(value).toFixed(2)}${begun === null ? "h0" : ""}`; // draws a single sample, too
      area += begun === null ? `M${x} ${HEIGHT}L${x} ${y(value).toFixed(2)}` : `L${x} ${y(value).toFixed(2)}`;
      begun ??= x;
    }
    if (begun !== null && (value === null || place === series.length - 1)) {
      area += `L${value === null ? x - 1 : x} ${HEIGHT}Z`;
      begun = null;
    }
  });
  made.line.setAttribute("d", line || "M0 0");
  made.area.setAttribute("d", area || "M0 0");
  const most = known.length ? Math.max(...known) : null;
  made.drawn.setAttribute(
    "aria-label",
    most === null ? `${made.name}: no samples yet` : `${made.name}, last ${whole(size * history.step_seconds)}: now ${made.format(series.at(-1))}, at most ${made.format(most)}`,
  );
  made.drawn.setAttribute("aria-valuemax", size - 1);
  if (made.place === null) rest(made);
  write(made.left, most === null ? "no samples yet" : `${whole(size * history.step_seconds)}, at most ${made.format(most)}`);
}

/** Show the value at a place, selected by the pointer or the arrow keys. */
function point(made, place) {
  if (!made.history) return;
  const value = made.series[place - (made.size - made.series.length)];
  made.place = place;
  made.mark.setAttribute("x1", place);
  made.mark.setAttribute("x2", place);
  const at = atClock(made.history.at - (made.size - 1 - place) * made.history.step_seconds);
  const text = `${at}: ${value === null || value === undefined ? "no sample" : made.format(value)}`;
  write(made.right, text);
  made.shown.classList.add("pointed");
  made.drawn.setAttribute("aria-valuenow", place);
  made.drawn.setAttribute("aria-valuetext", text);
}

function rest(made) {
  made.place = null;
  made.mark.setAttribute("x1", -1);
  made.mark.setAttribute("x2", -1);
  write(made.right, "now");
  made.shown.classList.remove("pointed");
  made.drawn.setAttribute("aria-valuenow", made.size - 1);
  made.drawn.setAttribute("aria-valuetext", made.series.length ? `now ${made.format(made.series.at(-1))}` : "no samples yet");
}

function part(tag, attributes) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
