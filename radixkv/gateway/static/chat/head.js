// Above the branch that is shown: the conversation's title, what it has saved, what can be done with it as a whole.

import { html, useRef } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";
import { removeAll, rename, save } from "./actions.js";
import { Menu } from "./menu.js";
import { model } from "./model.js";
import { conversation, panel, toggle } from "./view.js";
import { chooseBranches } from "./weaving/choosing.js";

const KEYS = [
  ["Enter", "send; with Shift a new line"],
  ["↑ ↓", "from message to message"],
  ["← →", "the other versions of a message"],
  ["e", "edit it"], ["r", "a further reply"], ["b", "go on from it in a new branch"],
  ["w", "choose a word of a reply: go on from there, other words"], ["c", "its versions side by side"],
  ["1 – 9", "of those go on with that one"], ["d", "mark the words in which they differ"],
  ["Esc", "leave an edit, a branch, a comparison"],
];
const ITEMS = [
  { name: "Rename", icon: "pencil", act: rename },
  { name: "Set branches side by side", icon: "columns-2", act: chooseBranches },
  { name: "Save this branch as Markdown", icon: "download", act: () => save("markdown") },
  { name: "Save this branch as HTML", icon: "download", act: () => save("html") },
  { name: "Save all as JSON", icon: "download", act: () => save("json") },
  { name: "Show in the tree", icon: "git-fork", act: () => location.assign(`/tree${location.hash}`) },
  { name: "Delete", icon: "trash", act: removeAll, isDanger: true },
];

export function Head() {
  const shown = conversation.value;
  return html`
    <div class="chat-head">
      <${SideButton} name="list" controls="sidebar" label="Conversations" icon="menu" />
      <h1>${shown?.info.title ?? "New chat"}</h1>
      ${model.value && html`<span class="soft small served" title="The model that replies">${model.value.id}</span>`}
      <${Saved} />
      <${Keys} />
      ${shown && html`<${Menu} id="more" label="More" items=${ITEMS} /><${SideButton} name="map" controls="map" label="Branches" icon="git-fork" />`}
    </div>
  `;
}

/** Opens a side on a narrow screen. */
function SideButton({ name, controls, label, icon }) {
  return html`<button class="bare icon-button only-narrow" aria-expanded=${panel.value === name} aria-controls=${controls} aria-label=${label}
    onClick=${() => toggle(name)}><${Icon} name=${icon} /></button>`;
}

function Saved() {
  const shown = conversation.value;
  const { read, cached } = shown?.shape.value ? shown.totals() : { read: 0, cached: 0 };
  if (!read) return null;
  return html`<span class="soft small numbers saved" title="Of all tokens that the replies of this conversation had to read">
    ${cached.toLocaleString()} tokens reused (${Math.round((100 * cached) / read)}%)
  </span>`;
}

function Keys() {
  const dialog = useRef(null);
  return html`
    <button class="bare icon-button" aria-label="Keys" title="Keys" onClick=${() => dialog.current.showModal()}><${Icon} name="circle-question-mark" /></button>
    <dialog ref=${dialog} aria-labelledby="keys-title">
      <h2 id="keys-title">Keys</h2>
      <dl class="keys">${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
      <form method="dialog"><button class="main">Close</button></form>
    </dialog>
  `;
}
