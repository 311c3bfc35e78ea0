// What changes something: a form that asks for name and reason, and tells what came of it.

import { ask } from "./asking.js";
import { count, element, write } from "./words.js";

const ROUNDS_MAX = 1000;

/** Make the form; `run` gets name and reason and a function that tells how far it is, and returns the end. */
export function actForm(title, run) {
  const actor = element("input", { id: "actor", required: true, maxlength: 80, autocomplete: "username" });
  actor.value = sessionStorage.getItem("actor") ?? "";
  const reason = element("input", { id: "reason", required: true, maxlength: 500, autocomplete: "off" });
  const button = element("button", { class: "act" }, title);
  const result = element("p", { role: "status" });
  const tell = (text, kind = "") => {
    write(result, text);
    result.className = kind;
    result.scrollIntoView({ block: "nearest" });
  };
  // A button that is disabled would lose the focus: it is only said to be.
  const isOff = () => button.getAttribute("aria-disabled") === "true";
  return element("form", { class: "again", onsubmit: async (event) => {
    event.preventDefault();
    if (isOff()) return;
    sessionStorage.setItem("actor", actor.value);
    button.setAttribute("aria-disabled", "true");
    tell("Doing it …");
    try {
      const outcome = await run({ actor: actor.value, reason: reason.value }, tell);
      tell(`${outcome.done ? "Done" : "Not done"}: ${outcome.text}.`, outcome.done ? "good" : "warn");
      button.setAttribute("aria-disabled", String(outcome.done));
    } catch (error) {
      tell(error.message, "warn");
      button.setAttribute("aria-disabled", "false");
    }
  } },
  element("p", {}, "Name and reason are kept in the audit."),
  element("label", { for: "actor" }, "Your name"), actor,
  element("label", { for: "reason" }, "Reason"), reason,
  button, result);
}

/** Work through a group, some at a time, until its end, a handler that is not mended, or `goesOn` says no. */
export async function throughGroup(path, group, why, tell, goesOn) {
  const sent = { dlq_reason: group.reason, subject: group.subject, last: group.last };
  let after = 0;
  let done = 0;
  let failed = 0;
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const some = await ask(path, { ...why, ...sent, after });
    ({ after } = some);
    done += some.done;
    failed += some.failed;
    const far = `${count(done)} of ${count(group.count)}${failed ? `, ${count(failed)} without an effect: ${some.text}` : ""}`;
    if (!some.more) return { done: !failed, text: far };
    if (some.failed && !some.done) return { done: false, text: `stopped, ${far}` };
    if (!goesOn()) return { done: false, text: `stopped at ${far}` };
    tell(`${far} …`);
  }
  return { done: false, text: "stopped: it goes on when it is asked for again" };
}
