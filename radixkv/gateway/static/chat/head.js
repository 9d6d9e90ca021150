// Above the branch that is shown: the conversation's title, what it has saved, what can be done with it as a whole.

import { html } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";
import { save } from "./conversation/actions.js";
import { model, models, sizeOf } from "./conversation/model.js";
import { settings } from "./conversation/settings.js";
import { conversation } from "./conversation/view.js";
import { Menu } from "./shared/menu.js";
import { deletionOf, marksOf } from "./sidebar/entry_menu.js";
import { chooseBranches } from "./weaving/choosing.js";
import { showKeys } from "./keys.js";
import { isOpen, toggleSide } from "./sides.js";

const savings = [
  { name: "Set branches side by side", icon: "columns-2", act: chooseBranches },
  { name: "Save this branch as Markdown", icon: "download", act: () => save("markdown") },
  { name: "Save this branch as HTML", icon: "download", act: () => save("html") },
  { name: "Save all as JSON", icon: "download", act: () => save("json") },
  { name: "Show in the tree", icon: "git-fork", act: () => location.assign(`/tree${location.hash}`) },
];

const itemsOf = (info) => [...marksOf(info), ...savings, deletionOf(info)];

export function Head() {
  const shown = conversation.value;
  return html`
    <div class="chat-head">
      <${SideButton} name="list" controls="sidebar" label="Conversations" icon="menu" />
      <h1>${shown?.info.title ?? "New chat"}</h1>
      <${Served} />
      <${Saved} />
      <button class="bare icon-button" aria-label="Keys" title="Keys: ?" onClick=${showKeys}><${Icon} name="circle-question-mark" /></button>
      ${shown && html`<${Menu} id="more" label="More" items=${() => itemsOf(shown.info)} /><${SideButton} name="map" controls="map" label="Branches" icon="git-fork" />`}
    </div>
  `;
}

/** Shows a side, or puts it away. */
function SideButton({ name, controls, label, icon }) {
  return html`<button class="bare icon-button" aria-expanded=${isOpen(name)} aria-controls=${controls} aria-label=${label} title=${label}
    onClick=${() => toggleSide(name)}><${Icon} name=${icon} /></button>`;
}

/** The model that replies here, and its size where that is known. */
function Served() {
  if (!model.value) return null;
  const own = settings.value.model ?? model.value.id;
  const size = sizeOf(models.value.find(({ id }) => id === own) ?? {});
  return html`<span class="soft small served" title=${["The model that replies", size].filter(Boolean).join(": ")}>${own}</span>`;
}

function Saved() {
  const shown = conversation.value;
  const { read, cached } = shown?.shape.value ? shown.totals() : { read: 0, cached: 0 };
  if (!read) return null;
  return html`<span class="soft small numbers saved" title="Of all tokens that the replies of this conversation had to read">
    ${cached.toLocaleString()} tokens reused (${Math.round((100 * cached) / read)}%)
  </span>`;
}
