// Breaking a hold: a question first, then the request, and the token if the server wants one.

import { element } from "./dom.js";
import { getJson, useToken } from "./server.js";
import { duration, inPath, nameOf } from "./format.js";

/** Asks, breaks, and calls `done` if the hold has ended. */
export function askToBreak(lockName, holder, done) {
  const dialog = document.getElementById("break-dialog");
  const error = element("p", { class: "error", role: "alert", hidden: true });
  const token = element("input", { type: "password", id: "break-token", autocomplete: "off", maxlength: 4096 });
  const tokenField = element(
    "label",
    { class: "field", hidden: true, for: "break-token" },
    "Token of the server",
    token,
  );
  const cancel = element("button", { type: "button", onclick: () => dialog.close() }, "Leave it");
  const confirm = element("button", { type: "submit", class: "danger" }, "Break the hold");

  const send = async (event) => {
    event.preventDefault();
    const shown = tokenField.hidden ? undefined : token.value;
    confirm.disabled = true;
    error.hidden = true;
    try {
      const path = `/v1/locks/${inPath(lockName)}/holders/${holder.fencing_token}`;
      await getJson(path, { method: "DELETE", token: shown, mayBeUnauthorised: true });
      if (shown !== undefined) useToken(shown);
      dialog.close();
      done();
    } catch (refused) {
      explain(refused);
    } finally {
      confirm.disabled = false;
    }
  };
  const explain = (refused) => {
    error.hidden = false;
    if (refused.status === 401) {
      error.textContent = tokenField.hidden
        ? "The server asks for its token."
        : "That is not the token of this server.";
      tokenField.hidden = false;
      token.focus();
    } else if (refused.status === 404) {
      error.textContent = "It does not hold this lock any more.";
      done();
    } else if (refused.status) {
      error.textContent = `Not broken: ${refused.message}`;
    } else {
      error.textContent = "The server does not answer. Whether the hold is broken is not known.";
    }
  };

  dialog.replaceChildren(
    element(
      "form",
      { method: "dialog", onsubmit: send },
      element("h2", { id: "break-title" }, "Break this hold?"),
      element(
        "dl",
        { class: "facts" },
        element("div", {}, element("dt", {}, "Lock"), element("dd", { class: "name" }, lockName)),
        element("div", {}, element("dt", {}, "Held by"), element("dd", { class: "name" }, nameOf(holder))),
        element("div", {}, element("dt", {}, "Held for"), element("dd", {}, duration(holder.since_ms))),
        element(
          "div",
          {},
          element("dt", {}, "Fence"),
          element("dd", { class: "figure" }, String(holder.fencing_token)),
        ),
      ),
      element(
        "p",
        {},
        "The lock passes to the next in the queue at once. Its holder is not asked and may go on working: " +
          "only what checks the fence is safe from it.",
      ),
      tokenField,
      error,
      element("div", { class: "buttons" }, cancel, confirm),
    ),
  );
  dialog.showModal();
  cancel.focus();
}
