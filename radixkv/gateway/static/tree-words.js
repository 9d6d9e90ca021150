// Numbers and nodes in words, the same wherever they stand.

/** A count with its noun: `3 blocks`. */
export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** A time in its largest unit: `12 s`, `4 min`, `3 h`. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1) return "1 s";
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 5700) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
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

/** When it was used, or who uses it. */
export function use(node, now_s) {
  if (node.sequences) return `${count(node.sequences, "sequence")} on it`;
  if (node.lockRef) return "in use below";
  return `used ${span(now_s - node.lastAccess_s)} ago`;
}

/** What a node is, for who does not see it. */
export function describe(node, now_s) {
  const words = [node.isTail ? "Tail" : "Node", node.label ? `“${oneLine(node.label)}”` : ""];
  words.push(`${count(node.tokens, "token")} at ${node.position.toLocaleString("en")}`, count(node.blocks, "block"));
  words.push(use(node, now_s));
  if (node.pinnedUntil_s > now_s) words.push(`pinned for ${span(node.pinnedUntil_s - now_s)}`);
  if (node.children.length) words.push(count(node.children.length, "branch", "branches"));
  if (node.goneAt_ms) words.push("evicted");
  return `${words.filter(Boolean).join(", ")}.`;
}
