// Breaking a hold or range locks: a question first, then the request, and the token if the server wants one.

import { element } from "./dom.js";
import { getJson, useToken } from "./server.js";
import { bytesOf, duration, inPath, nameOf, ownerOf, plural } from "./format.js";

/** Asks, breaks the hold of a lock, and calls `done` if it has ended. */
export function askToBreak(lockName, holder, done) {
  ask(
    {
      title: "Break this hold?",
      confirm: "Break the hold",
      path: `/v1/locks/${inPath(lockName)}/holders/${holder.fencing_token}`,
      facts: [
        ["Lock", "name", lockName],
        ["Held by", "name", nameOf(holder)],
        ["Held for", "", duration(holder.since_ms)],
        ["Fence", "figure", String(holder.fencing_token)],
      ],
      text:
        "The lock passes to the next in the queue at once. Its holder is not asked and may go on working: " +
        "only what checks the fence is safe from it.",
      gone: "It does not hold this lock any more.",
    },
    done,
  );
}

/** The same for the range locks of a resource that overlap the bytes of this one; `overlapping` are so many. */
export function askToBreakRanges(resource, range, overlapping, done) {
  const others = overlapping - 1;
  ask(
    {
      title: others > 0 ? `Break ${plural(overlapping, "range lock", "range locks")}?` : "Break this range lock?",
      confirm: "Break",
      path: `/v1/ranges/${inPath(resource)}/locks?start=${range.start}&len=${range.len}`,
      facts: [
        ["Resource", "name", resource],
        ["Held by", "name", ownerOf(range)],
        ["Bytes", "figure", bytesOf(range)],
        ["Held for", "", duration(range.since_ms)],
      ],
      text:
        "Every range lock that overlaps these bytes ends as a whole" +
        (others > 0 ? `, also ${plural(others, "other that is", "others that are")} shared. ` : ". ") +
        "Who waits for the bytes has them at once. The holder is not asked and may go on working.",
      gone: "Nobody holds these bytes any more.",
    },
    done,
  );
}

function ask({ title, confirm: label, path, facts, text, gone }, done) {
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
  const confirm = element("button", { type: "submit", class: "danger" }, label);

  const send = async (event) => {
    event.preventDefault();
    const shown = tokenField.hidden ? undefined : token.value;
    confirm.disabled = true;
    error.hidden = true;
    try {
      const { broken } = await getJson(path, { method: "DELETE", token: shown, mayBeUnauthorised: true });
      if (shown !== undefined) useToken(shown);
      if (broken === 0) return explain({ status: 404 });
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
    } else if (refused.status === 403) {
      error.textContent = `Not broken: ${refused.message}.`;
      tokenField.hidden = false;
      token.focus();
    } else if (refused.status === 404) {
      error.textContent = gone;
      done();
    } else if (refused.status) {
      error.textContent = `Not broken: ${refused.message}`;
    } else {
      error.textContent = "The server does not answer. Whether it is broken is not known.";
    }
  };

  const fact = ([name, kind, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: kind || null }, value));
  dialog.replaceChildren(
    element(
      "form",
      { method: "dialog", onsubmit: send },
      element("h2", { id: "break-title" }, title),
      element("dl", { class: "facts" }, ...facts.map(fact)),
      element("p", {}, text),
      tokenField,
      error,
      element("div", { class: "buttons" }, cancel, confirm),
    ),
  );
  dialog.showModal();
  cancel.focus();
}
