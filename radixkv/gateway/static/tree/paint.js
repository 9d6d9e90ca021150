// How a node looks: its colour tells its heat, and signs tell the rest, so that nothing is told by colour alone.
//
//   in use      a bar at its left end, and how many sequences stand on it
//   pinned      a ring that runs down, and the time that is left
//   tail        stripes and a torn right end
//   role        a chip before what it says
//   shared      how many branches go on from it
//   left        crossed out, fading; in red where it gave way for room

import { coloursOf } from "../colours.js";
import { FADE_MS } from "./model.js";
import { count, countdown, span } from "./words.js";

const NUM_HEATS = 7;
/** Past this a node is as cold as can be, in seconds. */
const COLD_S = 1800;
const colours = coloursOf([
  "text", "text-soft", "line", "line-strong", "ground", "raised", "accent", "accent-ground", "pinned", "danger", "warn",
  "on-role", "role-system", "role-user", "role-assistant", "role-other",
  ...Array.from({ length: NUM_HEATS }, (_, heat) => `heat-${heat}`),
]);
const FONT = '12px ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", monospace';
const SMALL = "11px system-ui, sans-serif";
const CHARACTER_PX = 7.3;
const LINE_PX = 15;
const MAX_LINES = 8;
/** Fewer characters than these are no line of a text. */
const MIN_LINE = 4;
/** In fewer characters a role is its first letter. */
const NARROW = 20;
/** From this height on a row bears text. */
export const TEXT_ROW_PX = 15;

/** Colours by their names in the style sheet. */
export function palette() {
  return colours.value;
}

/** The colour of what was used so many seconds ago. */
function heat(age_s) {
  const share = Math.log1p(Math.max(0, age_s) / 2) / Math.log1p(COLD_S / 2);
  return palette()[`heat-${Math.min(NUM_HEATS - 1, Math.floor(share * NUM_HEATS))}`];
}

/** Draw a node into a box of the canvas: `{ x, y, width, height }`. */
export function paintNode(context, node, box, now_s, { isFound, isDimmed }) {
  const alpha = (node.goneAt_ms ? fading(node) : 1) * (isDimmed ? 0.25 : 1);
  if (alpha !== 1) context.globalAlpha = alpha;
  const isPinned = node.pinnedUntil_s > now_s;
  paintGround(context, node, box, now_s);
  if (box.height >= 6 && box.width >= 6) paintSigns(context, node, box, isPinned);
  if (isFound) outline(context, box, palette().warn, 2);
  if (box.height >= TEXT_ROW_PX && box.width >= 26) paintText(context, node, box, isPinned, now_s);
  if (node.goneAt_ms) paintGone(context, box, node.goneAs === "pressure");
  if (alpha !== 1) context.globalAlpha = 1;
}

/** Draw a branch too small for its nodes to be told apart: as far as it reaches, as hot as its hottest. */
export function paintBranch(context, node, box, now_s) {
  context.fillStyle = node.below.last_s === Infinity ? palette().accent : heat(now_s - node.below.last_s);
  context.fillRect(box.x, box.y, Math.max(1, box.width), Math.max(1, box.height));
}

/** A frame around a box. */
export function outline(context, { x, y, width, height }, colour, width_px) {
  context.strokeStyle = colour;
  context.lineWidth = width_px;
  const inset = width_px / 2;
  context.strokeRect(x + inset, y + inset, Math.max(1, width - width_px), Math.max(1, height - width_px));
}

/** The name of a namespace in the row above its nodes. */
export function paintNamespace(context, space, box) {
  if (box.height < TEXT_ROW_PX - 3) return;
  const { text, "text-soft": soft } = palette();
  context.font = `600 ${SMALL}`;
  context.fillStyle = text;
  const middle = box.y + box.height / 2;
  context.fillText(space.name, 8, middle);
  const used_px = context.measureText(space.name).width + 18;
  context.font = SMALL;
  context.fillStyle = soft;
  context.fillText(`${count(space.below.nodes, "node")}, ${count(space.below.blocks, "block")}`, used_px, middle);
}

function fading(node) {
  return Math.max(0, 1 - (performance.now() - node.goneAt_ms) / FADE_MS);
}

function paintGround(context, node, { x, y, width, height }, now_s) {
  context.fillStyle = node.lockRef ? palette()["accent-ground"] : heat(now_s - node.lastAccess_s);
  context.fillRect(x, y, width, height);
}

function paintSigns(context, node, box, isPinned) {
  const { accent, pinned } = palette();
  if (node.isTail) paintTail(context, box);
  if (node.lockRef) {
    context.fillStyle = accent;
    context.fillRect(box.x, box.y, node.sequences ? 4 : 2, box.height);
  }
  if (isPinned) outline(context, box, pinned, 1.5);
}

function paintTail(context, { x, y, width, height }) {
  const { "line-strong": line, ground } = palette();
  context.strokeStyle = line;
  context.lineWidth = 0.6;
  context.beginPath();
  for (let left = x + 3; left < x + width - 2; left += 7) {
    context.moveTo(left, y + height);
    context.lineTo(Math.min(left + height / 2, x + width), y);
  }
  context.stroke();
  context.fillStyle = ground;
  context.beginPath();
  context.moveTo(x + width, y);
  context.lineTo(x + width - 4, y + height / 4);
  context.lineTo(x + width, y + height / 2);
  context.lineTo(x + width - 4, y + (3 * height) / 4);
  context.lineTo(x + width, y + height);
  context.fill();
}

function paintText(context, node, box, isPinned, now_s) {
  const { text, pinned } = palette();
  const left = Math.max(box.x, 0) + 8;
  const most = Math.max(1, Math.min(MAX_LINES, Math.floor((box.height - 4) / LINE_PX)));
  const wide = Math.floor((box.x + box.width - 6 - left) / CHARACTER_PX);
  const lines = linesOf(node.words, wide, wide < MIN_LINE ? 1 : most);
  const last = box.y + box.height / 2 + 0.5 + ((lines.length - 1) * LINE_PX) / 2;
  let right = box.x + box.width - 6;
  context.font = SMALL;
  if (isPinned) right = paintPin(context, node, right, last, now_s, pinned, box);
  for (const sign of signsOf(node, now_s)) {
    const width_px = context.measureText(sign).width;
    if (right - width_px < box.x + 60) break;
    context.fillStyle = text;
    context.fillText(sign, right - width_px, last);
    right -= width_px + 8;
  }
  const room = Math.floor((right - left) / CHARACTER_PX);
  if (room < 2) return;
  context.font = FONT;
  lines.forEach((line, index) => {
    const below = lines.length - 1 - index;
    paintLine(context, line, left, last - below * LINE_PX, below ? wide : room);
  });
}

/** Words in at most so many lines, each with the character at which it begins; the last word of the last line may be too long. */
function linesOf(words, room, most) {
  const lines = [[]];
  let end = 0;
  for (const { role, ...each } of words) {
    const isFull = end && end + each.word.trimEnd().length > room;
    if (isFull && lines.length < most) {
      lines.push([]);
      end = 0;
    }
    const whole = role && room < NARROW ? ` ${role[0].toUpperCase()} ` : each.word;
    const word = end ? whole : whole.trimStart();
    lines.at(-1).push({ role, word, at: end });
    if (isFull && end) break;
    end += word.length;
  }
  return lines;
}

function paintLine(context, line, left, y, room) {
  const colour = palette();
  for (const { role, word, at } of line) {
    const x = left + at * CHARACTER_PX;
    const fits = at + word.trimEnd().length <= room;
    if (role && fits) {
      const blank = word.length - word.trimStart().length;
      context.fillStyle = colour[`role-${role}`] ?? colour["role-other"];
      context.beginPath();
      context.roundRect(x + blank * CHARACTER_PX - 3, y - 7, word.trim().length * CHARACTER_PX + 4, 13, 4);
      context.fill();
    }
    context.fillStyle = colour[role && fits ? "on-role" : "text"];
    context.fillText(fits ? word : at ? "…" : cut(word, room), x, y);
    if (!fits) return;
  }
}

function signsOf(node, now_s) {
  const signs = [node.lockRef ? (node.sequences ? `● ${node.sequences}` : "○") : span(now_s - node.lastAccess_s)];
  if (node.children.length > 1) signs.push(`×${node.children.length}`);
  return signs;
}

/** The time left, and a ring that is full when the pin is set; the right end of what is free beside them. */
function paintPin(context, node, right, middle, now_s, colour, box) {
  const left_s = node.pinnedUntil_s - now_s;
  node.pinSpan_s = Math.max(node.pinSpan_s, left_s);
  const radius = 5;
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  context.arc(right - radius, middle, radius, 0, 2 * Math.PI);
  context.stroke();
  context.beginPath();
  context.moveTo(right - radius, middle);
  context.arc(right - radius, middle, radius, -Math.PI / 2, -Math.PI / 2 + (2 * Math.PI * left_s) / node.pinSpan_s);
  context.fill();
  right -= 2 * radius + 4;
  const words = countdown(left_s);
  const width_px = context.measureText(words).width;
  if (right - width_px < box.x + 30) return right;
  context.fillText(words, right - width_px, middle);
  return right - width_px - 8;
}

function paintGone(context, { x, y, width, height }, isAlarm) {
  context.strokeStyle = palette()[isAlarm ? "danger" : "text-soft"];
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x, y + height / 2);
  context.lineTo(x + width, y + height / 2);
  context.stroke();
}

function cut(text, room) {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, room - 1))}…`;
}
