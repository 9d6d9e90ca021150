// The side that shows all branches of the conversation: an overview in dots, and the outline.

import { html, useEffect, useRef } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { count } from "../../words.js";
import * as view from "../conversation/view.js";
import { costs, isToldOf } from "./costs.js";
import { Dots } from "./dots.js";
import { hits, runs, seen, sought } from "./state.js";
import { openTrash } from "./trash.js";
import { OutlineTree } from "./tree.js";

const PAUSE_MS = 150;

export function Outline() {
  const isFound = seen.value?.length > 0;
  return html`
    <aside class="map outline" id="map" aria-label="Branches">
      <div class="outline-head">
        <h2 class="small">Branches</h2>
        <${Size} />
        <button class="bare icon-button" aria-label="Thrown away branches" title="Thrown away branches" onClick=${openTrash}><${Icon} name="trash" /></button>
      </div>
      ${seen.value && html`<${Dots} />`}
      <${Find} />
      ${isFound && html`<${OutlineTree} />`}
      ${isFound && costs.value.size > 0 && isToldOf.value && html`<${Legend} />`}
    </aside>
  `;
}

function Size() {
  const all = runs.value;
  const size = view.conversation.value?.size ?? 0;
  return html`<span class="soft numbers size">${all && `${count(size, "message")}, ${count(all.numLeaves, "branch", "branches")}`}</span>`;
}

function Find() {
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const find = ({ target }) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => (sought.value = target.value), PAUSE_MS);
  };
  const number = hits.value?.size;
  return html`
    <label class="hidden-text" for="outline-search">Find in this conversation</label>
    <input id="outline-search" type="search" placeholder="Find in this conversation" value=${sought.value} onInput=${find} />
    <div role="status" class="soft small">${number === undefined ? "" : number ? `${count(number, "message")} found` : "None found."}</div>
  `;
}

/** What the signs before the lines mean. */
function Legend() {
  return html`<p class="soft legend"><span class="ready all"></span>answers at once <span class="ready part"></span>in part <span class="ready none"></span>anew</p>`;
}
