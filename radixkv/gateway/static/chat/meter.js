// How much of what the model can read at once the branch takes.

import { html } from "../vendor/htm-preact.js";
import { model } from "./model.js";
import * as view from "./view.js";

const CHARACTERS_A_TOKEN = 4; // where nothing is known of the branch
const NEAR = 0.85; // of the room, from which on it is said loudly

/** About how many tokens a branch and what one writes below it take: counted up to its last whole reply, estimated from there. */
export function tokensOf(path, written) {
  let known = path.length - 1;
  while (known >= 0 && path[known].details?.prompt_tokens == null) known--;
  const { prompt_tokens: read = 0, generated_tokens: told = 0 } = path[known]?.details ?? {};
  const length = (messages) => messages.reduce((sum, { text }) => sum + text.length, 0);
  const before = length(path.slice(0, known + 1));
  const a = before > 200 ? before / (read + told) : CHARACTERS_A_TOKEN;
  return Math.round(read + told + (length(path.slice(known + 1)) + written.length) / a);
}

/** `draft`: the signal of what one writes. */
export function ContextMeter({ draft }) {
  const most = model.value?.max_model_len;
  const shown = view.conversation.value;
  if (!most || !shown?.shape.value) return null;
  const tokens = tokensOf(view.shownBranch(), draft.value);
  const isNear = tokens > NEAR * most;
  const words = `about ${tokens.toLocaleString()} of ${most.toLocaleString()} tokens`;
  return html`<span class=${`context small numbers ${isNear ? "near" : "soft"}`} title=${`The branch with what you write: ${words}`}>
    <meter min="0" max=${most} high=${NEAR * most} value=${tokens} aria-label=${`Context: ${words}`}></meter>
    <span aria-hidden="true">${isNear ? words : `${Math.round((100 * tokens) / most)}%`}</span>
  </span>`;
}
