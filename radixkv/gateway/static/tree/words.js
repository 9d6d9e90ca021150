// Numbers and nodes in words, the same wherever they stand.

import { count, span } from "../words.js";

export { count, span };

/** With a capital letter, as a sentence begins. */
export function capital(text) {
  return text && text[0].toUpperCase() + text.slice(1);
}

/** A time that runs down: `4:59`, `1:02:03`. */
export function countdown(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const parts = [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
  if (!parts[0]) parts.shift();
  return parts.map((part, index) => (index ? String(part).padStart(2, "0") : String(part))).join(":");
}

/** A share as per cent. */
export function percent(share) {
  return `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)}%`;
}

/** One line of text, whatever the text holds. */
export function oneLine(text) {
  return text.replaceAll("\n", "⏎").replaceAll(/[\t\r\v\f]/g, " ");
}

/** A label, roles and what they say, as text. */
export function labelText(label) {
  return label.map(([role, text]) => (role ? `${role}: ${text}` : text)).join(" ");
}

const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });

/** A label as words, between which a line may be broken; a blank stands before its word, other signs behind theirs. */
export function wordsOf(label) {
  const words = [];
  for (const [role, text] of label) {
    if (role) words.push({ role, word: ` ${role} ` });
    for (const { segment, isWordLike } of segmenter.segment(oneLine(text))) {
      const last = words.at(-1);
      const isJoined = last && !last.role && (isWordLike ? !last.word.trim() : segment.trim());
      if (isJoined) last.word += segment;
      else words.push({ role: "", word: segment });
    }
  }
  return words;
}

/** When it was used, or who uses it. */
export function use(node, now_s) {
  if (node.sequences) return `${count(node.sequences, "sequence")} on it`;
  if (node.lockRef) return "in use below";
  return `used ${span(now_s - node.lastAccess_s)} ago`;
}

/** How a node has left the tree, by the kind of its leaving. */
export const LEFT = { ended: "ended", evicted: "evicted", pressure: "evicted for room" };

/** What a node is, for who does not see it. */
export function describe(node, now_s) {
  const words = [node.isTail ? "Tail" : "Node", node.label?.length ? `“${oneLine(labelText(node.label))}”` : ""];
  words.push(`${count(node.tokens, "token")} at ${node.position.toLocaleString("en")}`, count(node.blocks, "block"));
  words.push(use(node, now_s));
  if (node.pinnedUntil_s > now_s) words.push(`pinned for ${span(node.pinnedUntil_s - now_s)}`);
  if (node.children.length) words.push(count(node.children.length, "branch", "branches"));
  if (node.goneAt_ms) words.push(LEFT[node.goneAs]);
  return `${words.filter(Boolean).join(", ")}.`;
}
