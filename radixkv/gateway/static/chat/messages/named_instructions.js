// Instructions that are kept under names: picked for a conversation, kept from one, changed, deleted.

import { html, signal, useEffect, useState } from "../../vendor/htm-preact.js";
import { askForText, isConfirmed } from "../../dialog.js";
import { attempt } from "../conversation/actions.js";
import * as api from "../conversation/api.js";
import { say } from "../conversation/view.js";

/** `{name, text}` of each, by name, as far as the server has told. */
const kept = signal([]);

const learn = async () => {
  kept.value = (await api.instructions()).instructions;
};

/** Below a field of instructions; `field`: the reference of it. */
export function NamedInstructions({ field }) {
  const [name, choose] = useState("");
  useEffect(() => {
    learn().catch(() => {}); // without an answer the page does without
  }, []);
  const pick = ({ target }) => {
    choose(target.value);
    const found = kept.peek().find((one) => one.name === target.value);
    if (!found) return;
    field.current.value = found.text;
    field.current.dispatchEvent(new InputEvent("input", { bubbles: true })); // as if it were written
  };
  const keep = async () => {
    const text = field.current.value.trim();
    if (!text) {
      field.current.focus();
      return;
    }
    const given = await askForText({ title: "Name of these instructions", text: name, action: "Keep" });
    if (!given || !(await attempt(() => api.keepInstructions(given, text).then(learn)))) return;
    choose(given);
    say(`Kept as “${given}”.`);
  };
  const remove = async () => {
    const text = `“${name}” will be gone for good. Conversations stay as they are.`;
    if (!(await isConfirmed({ title: "Delete these instructions?", text, action: "Delete for good" }))) return;
    if (!(await attempt(() => api.deleteInstructions(name).then(learn)))) return;
    choose("");
    say(`“${name}” deleted.`);
  };
  return html`<div class="choices">
    ${kept.value.length > 0 &&
    html`<select aria-label="Kept instructions" value=${name} onChange=${pick}>
      <option value="">Kept instructions</option>
      ${kept.value.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
    </select>`}
    <button type="button" onClick=${keep} title="Keep this text under a name; under a name that is there it takes the place of its text">Keep under a name</button>
    ${name && html`<button type="button" class="danger" onClick=${remove}>Delete</button>`}
  </div>`;
}
