// The keys that do something wherever one is, and the list of all keys.

import { html } from "../vendor/htm-preact.js";
import { ask } from "../dialog.js";
import { afterRender } from "./shared/motion.js";
import { undoLast } from "./shared/toasts.js";
import { begin } from "./sidebar/sidebar.js";
import { showSide } from "./sides.js";

const KEYS = {
  Anywhere: [
    ["Ctrl K", "search"], ["Ctrl Shift O", "new chat"], ["/", "write a message"], ["Ctrl Z", "undo what was deleted or archived last"], ["?", "this list"],
  ],
  "While you write": [["Enter", "send; with Shift a new line"], ["↑", "in an empty field: edit your last message"], ["Esc", "leave an edit, a branch, a comparison"]],
  Messages: [
    ["↑ ↓", "from one to the next"], ["← →", "the other versions"], ["e", "edit it"], ["r", "a further reply"], ["b", "go on from it in a new branch"],
    ["w", "choose a word of a reply: go on from there, other words"], ["c", "its versions side by side"],
    ["1 – 9", "of those go on with that one"], ["d", "mark the words in which they differ"],
  ],
  Branches: [["↑ ↓", "from line to line"], ["← →", "fold, unfold"], ["Enter", "show it"], ["s", "star"], ["F2", "name"], ["Del", "prune; Ctrl Z brings it back"]],
  Conversations: [["↑ ↓", "from one to the next"], ["Enter", "open it"], ["x", "choose it; with Shift all up to it"], ["Del", "delete it"]],
};

/** Show which keys there are. */
export const showKeys = () =>
  ask("keys-title", (close) => html`
    <h2 id="keys-title">Keys</h2>
    <div class="keys" tabindex="0" role="group" aria-labelledby="keys-title"><div>
      ${Object.entries(KEYS).map(([where, keys]) => html`<section><h3>${where}</h3>
        <dl>${keys.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></section>`)}
    </div></div>
    <button class="main" autofocus onClick=${() => close()}>Close</button>
  `);

function openSearch() {
  showSide("list");
  afterRender(() => {
    const field = /** @type {HTMLInputElement} */ (document.getElementById("search"));
    field.focus();
    field.select();
  });
}

const WITH_CONTROL = { k: openSearch, "shift+o": begin };
const ALONE = { "/": () => document.getElementById("composer-text")?.focus(), "?": showKeys };

function onKey(event) {
  const { key, target, ctrlKey, metaKey, altKey, shiftKey } = event;
  if (event.defaultPrevented || altKey || document.querySelector("dialog[open], :popover-open")) return;
  const isWriting = target.matches("input:not([type=checkbox]), textarea, select");
  const isControl = ctrlKey || metaKey;
  const name = key.toLowerCase();
  if (isControl && name === "z" && !shiftKey && !isWriting) {
    if (undoLast()) event.preventDefault();
    return;
  }
  const action = isControl ? WITH_CONTROL[shiftKey ? `shift+${name}` : name] : isWriting ? null : ALONE[key];
  if (!action) return;
  event.preventDefault();
  action();
}

/** Have them do so from now on. */
export const watchKeys = () => addEventListener("keydown", onKey);
