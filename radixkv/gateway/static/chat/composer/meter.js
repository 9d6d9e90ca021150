// How much of what the model can read at once the branch takes, and the way out where it is nearly all.

import { html } from "../../vendor/htm-preact.js";
import { tokensOf } from "../conversation/counting.js";
import { model } from "../conversation/model.js";
import * as view from "../conversation/view.js";
import { leaveOutBeginning } from "../weaving/cutting.js";

const NEAR = 0.85; // of the room, from which on there is a way out

/** `draft`: the signal of what one writes. */
export function ContextMeter({ draft }) {
  const most = model.value?.max_model_len;
  const shown = view.conversation.value;
  if (!most || !shown?.shape.value) return null;
  const tokens = tokensOf(view.shownBranch(), draft.value);
  const isNear = tokens > NEAR * most;
  const words = `about ${tokens.toLocaleString()} of ${most.toLocaleString()} tokens`;
  const share = `${Math.round((100 * tokens) / most)}%`;
  return html`<span class=${`context small numbers ${isNear ? "near" : "soft"}`} title=${`The branch with what you write: ${words}`}>
    <meter min="0" max=${most} high=${NEAR * most} value=${tokens} aria-label=${`Context: ${words}`}></meter>
    <span aria-hidden="true">${share}</span>
    ${isNear && html`<button type="button" class="bare small" onClick=${() => leaveOutBeginning(most)}>Make room</button>`}
  </span>`;
}
