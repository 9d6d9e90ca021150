// What a conversation without messages shows.

import { html } from "../vendor/htm-preact.js";

const IDEAS = [
  "Explain why the sky is blue to a child of six.",
  "Write a short poem about branches.",
  "What should I look at first in a Python project that is slow?",
];

/** `onIdea(text)`; `field`: takes the field for instructions, of a conversation that is not there yet (`isNew`). */
export function Start({ isNew, field, onIdea }) {
  return html`
    <div class="thread start-page">
      <h2>What shall it be about?</h2>
      <p class="soft">Edit any message, ask for several drafts, go back and branch: what branches share is computed once.</p>
      <div class="ideas">${IDEAS.map((idea) => html`<button onClick=${() => onIdea(idea)}>${idea}</button>`)}</div>
      ${isNew && html`<details class="instructions"><summary>Instructions for the model</summary>
        <label class="hidden-text" for="instructions">Instructions</label>
        <textarea id="instructions" rows="3" ref=${field} placeholder="You are a helpful assistant"></textarea></details>`}
    </div>
  `;
}
