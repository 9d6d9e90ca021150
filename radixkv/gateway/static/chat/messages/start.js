// What a conversation without messages shows.

import { html, useRef } from "../../vendor/htm-preact.js";
import { writeInstead } from "../composer/composer.js";
import { playBranching } from "../conversation/actions.js";
import { instructionsWritten, keepInstructions } from "../conversation/instructions.js";
import { model, sizeOf } from "../conversation/model.js";
import { NamedInstructions } from "./named_instructions.js";

const IDEAS = ["Explain why the sky is blue to a child of six.", "Write a short poem about branches."];

/** `isNew`: the conversation is not there yet. */
export function Start({ isNew }) {
  const first = useRef(instructionsWritten()).current;
  const field = useRef(null);
  return html`
    <div class="thread start-page">
      <h2>Start a conversation</h2>
      ${model.value && html`<p class="soft model-line"><strong>${model.value.id}</strong>, ${sizeOf(model.value) && `${sizeOf(model.value)}, `}on this server. It reads up to ${model.value.max_model_len.toLocaleString()} tokens.</p>`}
      <p class="soft">Edit any message, ask for several drafts, go back and branch: what branches share is computed once.</p>
      <div class="ideas">
        ${isNew && html`<button class="main" onClick=${playBranching}>Show me branching</button>`}
        ${IDEAS.map((idea) => html`<button onClick=${() => writeInstead(idea)}>${idea}</button>`)}
      </div>
      ${isNew && html`<details class="instructions" open=${Boolean(first)}><summary>Instructions for the model</summary>
        <label class="hidden-text" for="instructions">Instructions</label>
        <textarea id="instructions" rows="3" defaultValue=${first} onInput=${(event) => keepInstructions(event.target.value)}
          placeholder="You are a helpful assistant" ref=${field}></textarea><${NamedInstructions} field=${field} /></details>`}
    </div>
  `;
}
