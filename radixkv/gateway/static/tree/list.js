// The tree as a list: nested, opened level by level, for whoever does not read a drawing.

import { LEFT, count, labelText, oneLine, span, use } from "./words.js";
import { html, useEffect, useState } from "../vendor/htm-preact.js";

const AT_ONCE = 50;

/** `wantLabels(nodes)` has those named that are shown without their text. */
export function TreeList({ tree, now_s, selected, onSelect, wantLabels }) {
  return html`<div class="list" tabindex="-1">
    ${tree.namespaces.map(
      (space) => html`<section aria-label=${`Namespace ${space.name}`}>
        <h3>${space.name} <span class="soft small">${total(space)}</span></h3>
        <${Level} nodes=${space.children} ...${{ now_s, selected, onSelect, wantLabels }} />
      </section>`,
    )}
  </div>`;
}

function total({ below }) {
  return `${count(below.nodes, "node")}, ${count(below.blocks, "block")}`;
}

function Level({ nodes, ...shared }) {
  const [shown, show] = useState(AT_ONCE);
  const some = nodes.slice(0, shown);
  const bare = some.filter((node) => node.label === null);
  useEffect(() => {
    if (bare.length) shared.wantLabels(bare);
  });
  return html`<ul>
    ${some.map((node) => html`<${Entry} key=${node.id} node=${node} ...${shared} />`)}
    ${nodes.length > shown &&
    html`<li>
      <button class="bare" onClick=${() => show(shown + AT_ONCE)}>${count(nodes.length - shown, "more node")}</button>
    </li>`}
  </ul>`;
}

function Entry({ node, ...shared }) {
  const [isOpen, open] = useState(false);
  const { now_s, selected, onSelect } = shared;
  const label = node.label ?? [["", "…"]];
  const text = oneLine(labelText(label)).slice(0, 80);
  const isPinned = node.pinnedUntil_s > now_s;
  return html`<li class=${node.goneAt_ms ? "gone" : ""}>
    <div class="entry">
      ${node.children.length
        ? html`<button class="bare twist" aria-expanded=${isOpen} onClick=${() => open(!isOpen)}
            aria-label=${`Branches of the node at ${node.position}: ${text}`}>${isOpen ? "▾" : "▸"}</button>`
        : html`<span class="twist" aria-hidden="true"></span>`}
      <button class="bare name" aria-pressed=${node === selected} onClick=${() => onSelect(node)}>
        ${label.map(([role, said]) => html`${role && html`<i class=${`role ${role}`}>${role}</i>`}
          <span class="mono">${oneLine(said).slice(0, 80)} </span>`)}
        <span class="soft small numbers">${node.isTail ? "tail, " : ""}${count(node.tokens, "token")}, ${use(node, now_s)}
          ${isPinned ? `, pinned for ${span(node.pinnedUntil_s - now_s)}` : ""}${node.goneAt_ms ? `, ${LEFT[node.goneAs]}` : ""}</span>
      </button>
    </div>
    ${isOpen && html`<${Level} nodes=${node.children} ...${shared} />`}
  </li>`;
}
