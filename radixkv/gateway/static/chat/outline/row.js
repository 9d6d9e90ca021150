// One line of the outline: a message, or a run of them.

import { html, useComputed } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { count, span } from "../../words.js";
import { NAMES, excerpt } from "../conversation/conversation.js";
import * as view from "../conversation/view.js";
import { costs, readiness, readinessInWords } from "./costs.js";
import { pinnedFor_s } from "./pins.js";
import { hits, turn } from "./state.js";

export const ROW_PX = 32;
const TEXT_LENGTH = 40;
const BEFORE_HIT = 12;
const STEPS = { px: 12, few: 5, further_px: 3, most: 12 }; // of a level to the right: small ones further on

/** The id of a row's element. */
export const elementId = (key) => `row-${key}`;

/**
 * What a line says of its message. A reply under way has no text here until it fills the line: its tokens do not concern the
 * outline.
 */
function gistOf({ role, status, starred, name, text, error }) {
  const isShort = status === "running" && text.length < 2 * TEXT_LENGTH;
  return JSON.stringify({ role, status, starred, name, text: isShort ? "" : excerpt(text, TEXT_LENGTH), error });
}

/** The text around what was looked for, or the message's name, or its beginning. */
function Words({ gist, hit, cell }) {
  if (hit) {
    const text = cell.peek().text;
    const from = Math.max(0, hit[0] - BEFORE_HIT);
    const part = (begin, end) => text.slice(begin, end).replace(/\s+/g, " ");
    return html`${from ? "…" : ""}${part(from, hit[0])}<mark>${part(...hit)}</mark>${part(hit[1], hit[1] + TEXT_LENGTH)}`;
  }
  if (gist.name) return html`<b>${gist.name}</b>`;
  return gist.text || (gist.status === "running" ? "" : gist.status);
}

/** A row (`rowKey`: its key) at place `index` of all; `cell`: its message; `onMenu(key, button)`. */
export function Row({ rowKey, index, cell, isActive, isCurrent, isShown, numRunning, onMenu, ...row }) {
  const gist = JSON.parse(useComputed(() => gistOf(cell.value)).value);
  const cost = costs.value.get(row.end);
  const pinned_s = pinnedFor_s(row.end);
  const hit = hits.value?.get(row.id);
  const level = row.level;
  const indent_px = STEPS.px * Math.min(level, STEPS.few) + STEPS.further_px * Math.min(Math.max(0, level - STEPS.few), STEPS.most);
  const turns = row.kind === "turn" || row.numTurns < 2 || (row.kind === "run" && row.isOpen !== false) ? "" : count(row.numTurns, "turn");
  const marks = [row.kind, gist.role, gist.status, isActive && "active", isCurrent && "current", isShown && "shown"].filter(Boolean);
  const open = (event) => (event.shiftKey ? view.compare([view.tip.peek(), view.conversation.peek().tip(row.id)]) : view.reveal(row.id));
  const fold = (event) => {
    event.stopPropagation();
    turn(rowKey);
  };
  return html`
    <div
      id=${elementId(rowKey)} class=${`outline-row ${marks.join(" ")}`} role="treeitem"
      aria-level=${level + 1} aria-posinset=${row.place} aria-setsize=${row.count}
      aria-expanded=${row.isOpen ?? undefined} aria-selected=${isShown} aria-current=${isCurrent ? "true" : undefined}
      title=${cell.peek().text.slice(0, 300)}
      aria-label=${inWords(row, gist, { turns, numRunning, pinned_s, cost, isCurrent })}
      style=${{ top: `${index * ROW_PX}px`, paddingLeft: `${indent_px}px` }} onClick=${open}
    >
      ${row.isOpen === null ? html`<span class="twisty"></span>` : html`<span class="twisty" onClick=${fold}><${Icon} name=${row.isOpen ? "chevron-down" : "chevron-right"} /></span>`}
      <span class=${`ready ${readiness(cost)}`}></span>
      ${turns && html`<span class="soft turns">${turns}</span>`}
      <span class="row-text" dir="auto"><${Words} gist=${gist} hit=${hit} cell=${cell} /></span>
      ${numRunning > 0 && html`<span class="writing-mark">${numRunning > 1 ? `${numRunning} writing` : "writing"}</span>`}
      ${gist.starred && html`<span class="star"><${Icon} name="star" /></span>`}
      ${pinned_s > 0 && html`<span class="pinned numbers"><${Icon} name="pin" />${span(pinned_s)}</span>`}
      ${row.numForks > 1 && html`<span class="forks numbers">×${row.numForks}</span>`}
      <button class="bare row-menu" tabindex="-1" aria-label="Actions"
        onClick=${(event) => (event.stopPropagation(), onMenu(rowKey, event.currentTarget))}><${Icon} name="ellipsis" /></button>
    </div>
  `;
}

/** All that the line shows, as a reader is told it. */
function inWords(row, gist, { turns, numRunning, pinned_s, cost, isCurrent }) {
  return [
    `${NAMES[gist.role]}: ${gist.name || gist.text || gist.status}`,
    turns,
    row.numForks > 1 && `${row.numForks} versions follow`,
    numRunning > 0 && (numRunning > 1 ? `${numRunning} replies being written` : "being written"),
    gist.starred && "starred",
    pinned_s > 0 && `pinned for ${span(pinned_s)}`,
    readinessInWords(cost),
    isCurrent && "shown now",
  ]
    .filter(Boolean)
    .join(", ");
}
