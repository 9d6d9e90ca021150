// Where the words of a text that is shown as Markdown stand in its source.
//
//   source  | A ** b o l d ** word        what is shown is the source without its marks, letter by letter,
//   shown   | A    b o l d    word        but for blanks; the longest common sequence of both tells which is which

import { sourceOf } from "./math.js";
import { read } from "./reader.js";

const NOT_SOURCE = ".code-head, .footnote-ref, .footnotes, button"; // parts of a text that the page adds, or moves
const LONGEST_MS = 500; // spent on one comparison
const NOT_SHOWN = [
  /(?<=\])\((?:[^()\s]|\([^()\s]*\))*(?:\s+"[^"\n]*")?\)/g, // addresses of links
  /(?<=^[\s>]*(?:`{3,}|~{3,}))[^\n`~]+$/gm, // the language of code
];

/** The words in sight of a text that is shown, in their order: `{node, from, to}` each, between two places of a text node. */
export function wordsOf(markdown) {
  const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });
  const words = [];
  for (const node of shownNodes(markdown)) {
    if (node.parentElement.closest(".math") || !node.parentElement.checkVisibility()) continue;
    for (const { segment, index, isWordLike } of segmenter.segment(node.data)) {
      if (isWordLike) words.push({ node, from: index, to: index + segment.length });
    }
  }
  return words;
}

/**
 * Where a range of a text that is shown lies in its source: `{begin, end}`; null where that cannot be told.
 *
 * @param {Element} markdown
 * @param {string} source
 * @param {Range} range
 */
export async function placeOf(markdown, source, range) {
  await import("../../vendor/diff.js");
  const begin = within(markdown, source, range.startContainer, range.startOffset, false);
  const end = within(markdown, source, range.endContainer, range.endOffset, true);
  return begin === null || end === null || end < begin ? null : { begin, end };
}

/** The place in the source of one in what is shown; `isEnd`: behind the letter that comes before it, else before the next one. */
function within(markdown, source, container, offset, isEnd) {
  const blocks = [...markdown.children];
  const at = container === markdown ? blocks[Math.min(offset, blocks.length - 1)] : blocks.find((block) => block.contains(container));
  let index = blocks.indexOf(at);
  let count = index < 0 ? 0 : lettersBefore(at, container, offset, isEnd);
  if (isEnd) while (count === 0 && index > 0) count = lettersOf(shownText(blocks[--index])).length;
  if (index < 0) return null;
  const { from, to } = spanOf(source, index);
  const places = aligned(source.slice(from, to), shownText(blocks[index]));
  if (!places) return null;
  const place = isEnd ? places.slice(0, count).findLast((one) => one !== null) : places.slice(count).find((one) => one !== null);
  if (place === undefined) return isEnd ? null : from;
  return from + place + (isEnd ? String.fromCodePoint(source.codePointAt(from + place)).length : 0);
}

/** Letters that are shown in a block before a place of it, blanks not among them; the formula around it counts where it is an end. */
function lettersBefore(block, container, offset, isEnd) {
  const before = document.createRange();
  before.setStart(block, 0);
  before.setEnd(container, offset);
  let count = 0;
  for (const part of shownParts(block)) {
    if (part.node === container) return count + lettersOf(part.text.slice(0, offset)).length;
    if (before.comparePoint(part.node, 0) > 0 || (!isEnd && part.node.contains(container))) break;
    count += lettersOf(part.text).length;
  }
  return count;
}

const lettersOf = (text) => [...text].filter((letter) => letter.trim());
const shownText = (block) => shownParts(block).map(({ text }) => text).join("");

/** What stands in a block that stands in the source too: `{node, text}`; a formula by its source. */
function shownParts(block) {
  const parts = [];
  let formula = null;
  for (const node of shownNodes(block)) {
    const math = node.parentElement.closest(".math");
    if (!math) parts.push({ node, text: node.data });
    else if (math !== formula) parts.push({ node: math, text: sourceOf(math) });
    formula = math;
  }
  return parts;
}

function shownNodes(element) {
  const nodes = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = /** @type {Text} */ (walker.currentNode);
    if (!node.parentElement.closest(NOT_SOURCE)) nodes.push(node);
  }
  return nodes;
}

/** From where to where in the source the block goes. */
function spanOf(source, index) {
  const { blocks } = read(source, "", []);
  const starts = [0, ...Array.from(source.matchAll(/\r\n?|\n/g), (end) => end.index + end[0].length)];
  const next = blocks.slice(index + 1).find(({ line }) => line !== undefined);
  return { from: starts[blocks[index]?.line ?? 0] ?? 0, to: next ? starts[next.line] : source.length };
}

/** For each letter that is shown, where in the source it stands, or null. */
function aligned(source, shown) {
  let blanked = source;
  for (const pattern of NOT_SHOWN) blanked = blanked.replace(pattern, (found) => " ".repeat(found.length));
  const letters = [];
  let at = 0;
  for (const letter of blanked) {
    if (letter.trim()) letters.push({ letter, at });
    at += letter.length;
  }
  const parts = globalThis.Diff.diffArrays(letters.map(({ letter }) => letter), lettersOf(shown), { timeout: LONGEST_MS });
  if (!parts) return null;
  const places = [];
  let next = 0;
  for (const { count, added, removed } of parts) {
    if (added) places.push(...Array(count).fill(null));
    else if (!removed) for (let index = 0; index < count; index++) places.push(letters[next + index].at);
    if (!added) next += count;
  }
  return places;
}
