// What was done, for a while, with the way to undo it.

import { html, signal } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { keepFocus } from "./focus.js";
import { afterRender } from "./motion.js";

const STAYS_MS = 12_000;
const toast = signal(null);
let timer;

/** Say what was done; `undo` undoes it. */
export function showToast(text, undo) {
  toast.value = { text, undo };
  stay();
}

/** Undo what was done last, as long as it is told; whether there was something. */
export function undoLast() {
  const last = toast.peek();
  if (!last) return false;
  hide();
  last.undo();
  return true;
}

const hold = () => clearTimeout(timer);

function stay() {
  hold();
  timer = setTimeout(hide, STAYS_MS);
}

function hide() {
  hold();
  toast.value = null;
  afterRender(keepFocus);
}

/** It stays while one points at it, or while the focus is in it. */
export function Toast() {
  const shown = toast.value;
  return html`<div role="status" class="toast-place">
    ${shown &&
    html`<div class="toast" onPointerEnter=${hold} onPointerLeave=${stay} onFocusIn=${hold} onFocusOut=${stay}>
      <span>${shown.text}</span>
      <button class="bare" title="Ctrl+Z" onClick=${undoLast}><${Icon} name="undo-2" />Undo</button>
      <button class="bare icon-button" aria-label="Close" onClick=${hide}><${Icon} name="x" /></button>
    </div>`}
  </div>`;
}
