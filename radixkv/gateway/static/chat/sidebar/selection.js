// Several conversations, chosen to be changed together.

import { html, signal } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { archive, bringBack, deleteForGood, exportAll, throwAway } from "./keeping.js";
import { listed, loadAll, place } from "./list.js";
import { tagAll } from "./tagging.js";

/** Ids of those that are chosen; null: one chooses none now. */
export const chosen = signal(null);
let anchor = null; // chosen last: a range begins there

/** Begin to choose, or end it. */
export function toggleChoosing() {
  chosen.value = chosen.peek() ? null : new Set();
  anchor = null;
}

/** Choose one, or choose it no more; `isRange`: and all from the last one to it. */
export function choose(id, isRange) {
  const next = new Set(chosen.peek() ?? []);
  const ids = listed.peek().map((one) => one.id);
  const from = isRange && ids.includes(anchor) ? ids.indexOf(anchor) : ids.indexOf(id);
  const [first, last] = [from, ids.indexOf(id)].sort((one, other) => one - other);
  const isChosen = !next.has(id);
  for (const each of ids.slice(first, last + 1)) {
    if (isChosen) next.add(each);
    else next.delete(each);
  }
  anchor = id;
  chosen.value = next;
}

async function chooseAll() {
  await loadAll();
  chosen.value = new Set(listed.peek().map((one) => one.id));
}

/** Those that are chosen and still listed. */
export const chosenOnes = () => listed.value.filter((one) => chosen.value?.has(one.id));

/** What can be done with all of them. */
export function SelectionBar() {
  if (!chosen.value) return null;
  const all = chosenOnes();
  const isTrash = place.value === "trash";
  const isArchive = place.value === "archive";
  const act = (does) => async () => {
    if (await does(all)) toggleChoosing();
  };
  const button = (icon, name, does, more = "") =>
    html`<button class=${`bare icon-button ${more}`} aria-label=${name} title=${name} disabled=${!all.length} onClick=${act(does)}><${Icon} name=${icon} /></button>`;
  return html`
    <div class="selection" role="toolbar" aria-label="Chosen conversations">
      <span class="small numbers" role="status" title="Chosen">${all.length}<span class="hidden-text"> chosen</span></span>
      <button class="bare small" onClick=${chooseAll}>All</button>
      <span class="spring"></span>
      ${isTrash
        ? html`${button("undo-2", "Restore", bringBack)} ${button("trash", "Delete for good", deleteForGood, "danger")}`
        : html`${button("tag", "Tags", tagAll)}
            ${isArchive ? button("archive-restore", "Unarchive", (some) => archive(some, false)) : button("archive", "Archive", (some) => archive(some, true))}
            ${button("download", "Export", exportAll)} ${button("trash", "Delete", throwAway, "danger")}`}
      <button class="bare icon-button" aria-label="Done" title="Done" onClick=${toggleChoosing}><${Icon} name="x" /></button>
    </div>
  `;
}
