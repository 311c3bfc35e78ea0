// Form for a change: it requires name and reason, and shows progress and result.

import { request } from "./api.js";
import { count, element, write } from "./rendering.js";

const ROUNDS_MAX = 1000;

/** Make the form; `run` gets name, reason and a function that shows progress, and returns the result. */
export function actionForm(title, run) {
  const actor = element("input", { id: "actor", required: true, maxlength: 80, autocomplete: "username" });
  actor.value = sessionStorage.getItem("actor") ?? "";
  const reason = element("input", { id: "reason", required: true, maxlength: 500, autocomplete: "off" });
  const button = element("button", { class: "act" }, title);
  const result = element("p", { role: "status" });
  const show = (text, kind = "") => {
    write(result, text);
    result.className = kind;
    result.scrollIntoView({ block: "nearest" });
  };
  // A disabled button would lose the focus, so it only gets aria-disabled.
  const isOff = () => button.getAttribute("aria-disabled") === "true";
  return element("form", { class: "again", onsubmit: async (event) => {
    event.preventDefault();
    if (isOff()) return;
    sessionStorage.setItem("actor", actor.value);
    button.setAttribute("aria-disabled", "true");
    show("Running …");
    try {
      const outcome = await run({ actor: actor.value, reason: reason.value }, show);
      show(`${outcome.done ? "Done" : "Not done"}: ${outcome.text}.`, outcome.done ? "good" : "warn");
      button.setAttribute("aria-disabled", String(outcome.done));
    } catch (error) {
      show(error.message, "warn");
      button.setAttribute("aria-disabled", "false");
    }
  } },
  element("p", {}, "The audit records name and reason."),
  element("label", { for: "actor" }, "Your name"), actor,
  element("label", { for: "reason" }, "Reason"), reason,
  button, result);
}

/** Change a group in batches until its end, until the handler fails a whole batch, or until `isActive` returns false. */
export async function changeGroup(path, group, why, show, isActive) {
  const sent = { dlq_reason: group.reason, subject: group.subject, last: group.last };
  let after = 0;
  let done = 0;
  let failed = 0;
  for (let round = 0; round < ROUNDS_MAX; round += 1) {
    const progress = await request(path, { ...why, ...sent, after });
    ({ after } = progress);
    done += progress.done;
    failed += progress.failed;
    const text = `${count(done)} of ${count(group.count)}${failed ? `, ${count(failed)} without an effect: ${progress.text}` : ""}`;
    if (!progress.more) return { done: !failed, text };
    if (progress.failed && !progress.done) return { done: false, text: `stopped, ${text}` };
    if (!isActive()) return { done: false, text: `stopped at ${text}` };
    show(`${text} …`);
  }
  return { done: false, text: "stopped: press the button again to continue" };
}
