// A card for each side: depth, oldest, rate, and totals since the start.

import { count, duration, element, moment, once, rate, write } from "./rendering.js";

const SIDES = {
  outbox: {
    title: "Outbox",
    subtitle: "database → stream",
    flow: "Published / s",
    dead: "dead event",
    counts: [
      ["published", "published"],
      ["duplicates", "duplicates suppressed by the stream"],
      ["postponed", "failed attempts, retried"],
      ["died", "became DEAD"],
      ["leases_reaped", "expired leases removed"],
    ],
  },
  inbox: {
    title: "Inbox",
    subtitle: "stream → handler",
    flow: "Processed / s",
    dead: "dead letter",
    counts: [
      ["processed", "processed"],
      ["skipped", "duplicates suppressed by the inbox"],
      ["retried", "failed attempts, retried"],
      ["dead_lettered", "dead-lettered"],
      ["leases_lost", "leases lost, on both sides"],
    ],
  },
};
const OLD_SECONDS = 60;
const cards = new Map();

export function showSides(status) {
  for (const [name, side] of Object.entries(status.sides)) {
    if (!cards.has(name)) add(name);
    show(cards.get(name), side, status, name);
  }
}

function add(name) {
  const labels = SIDES[name];
  const tiles = {
    depth: tile("Waiting"),
    oldest: tile("Oldest waits for"),
    rate: tile(labels.flow),
  };
  const card = { tiles, undelivered: element("p", { hidden: true }), scheduled: element("p"), dead: element("p"), reasons: element("ul", { class: "reasons" }), counts: {}, labels };
  const list = element("dl");
  for (const [key, text] of labels.counts) {
    card.counts[key] = element("dd");
    list.append(element("dt", {}, text), card.counts[key]);
  }
  card.counted = element("small", { class: "counted" });
  const title = element("h2", {}, labels.title, element("small", {}, labels.subtitle));
  const shown = element(
    "section",
    { class: "side", "aria-label": labels.title },
    element("div", { class: "head" }, title, card.counted),
    element("div", { class: "tiles" }, ...Object.values(tiles).map((each) => each.shown)),
    element("div", { class: "dead" }, card.undelivered, card.scheduled, card.dead, card.reasons),
    element("h3", {}, "This worker, since its start"),
    list,
  );
  document.getElementById("sides").append(shown);
  cards.set(name, card);
}

function tile(title) {
  const value = element("b", {}, "–");
  return { value, shown: element("div", { class: "tile" }, element("h3", {}, title), value) };
}

function show(card, side, status, name) {
  const sample = side.sample;
  const capped = (number) => (number >= status.depth_max ? `≥ ${count(number)}` : count(number));
  if (card.at !== side.at) card.counted.replaceChildren("counted ", moment((card.at = side.at)));
  card.counted.classList.toggle("warn", status.now - side.at > OLD_SECONDS);
  write(card.tiles.depth.value, sample ? capped(sample.depth + side.undelivered) : "–");
  write(card.undelivered, side.undelivered ? `${count(side.undelivered)} of them are not delivered yet, and wait in the stream` : "");
  card.undelivered.hidden = !side.undelivered;
  write(card.tiles.oldest.value, sample ? (sample.depth ? duration(sample.oldest_seconds) : "none") : "–");
  write(card.tiles.rate.value, rate(side.per_second));
  for (const [key, shown] of Object.entries(card.counts)) {
    const total = status.totals[key] ?? 0;
    write(shown, count(total));
    shown.classList.toggle("warn", total > 0 && (key === "died" || key === "dead_lettered" || key === "leases_lost"));
  }
  write(card.scheduled, sample?.scheduled ? `${capped(sample.scheduled)} scheduled for later` : "");
  card.scheduled.hidden = !sample?.scheduled;
  write(card.dead, sample ? stopped(sample.dead, capped, card.labels.dead) : "–");
  card.dead.classList.toggle("warn", Boolean(sample?.dead));
  const reasons = sample?.dead ? (status.overview?.reasons[name] ?? []) : [];
  once(card.reasons, reasons, () => reasons.map((each) => element("li", {}, element("b", {}, count(each.count)), ` ${each.text}`)));
}

function stopped(number, capped, noun) {
  return number ? `${capped(number)} ${noun}${number === 1 ? "" : "s"}` : `No ${noun}s`;
}
