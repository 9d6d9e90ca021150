// Instructions for a branch that has begun without.

import { html, useState } from "../../vendor/htm-preact.js";
import { Editor, isEdited } from "./editor.js";

/** Above the branch; `id`: of its conversation. */
export function AddInstructions({ id }) {
  const [isOpen, open] = useState(false);
  const message = { id: `instructions-${id}`, role: "system", text: "" };
  if (isOpen) {
    return html`<div class="message system"><h2 class="small soft">Instructions</h2>
      <${Editor} message=${message} name="Instructions" onClose=${() => open(false)} /></div>`;
  }
  return html`<p class="add-instructions"><button class="bare small soft" onClick=${() => open(true)}>
    ${isEdited(message.id) ? "Go on with the instructions" : "Add instructions"}</button></p>`;
}
