// A place in a reply that is picked: by selecting some of its text, or word by word with keys, buttons or taps.

import { effect, signal } from "../../vendor/htm-preact.js";
import { characters } from "../conversation/conversation.js";
import * as view from "../conversation/view.js";
import { afterRender } from "../shared/motion.js";
import { placeOf, wordsOf } from "../text/places.js";

const PAUSE_MS = 200; // of somebody who selects
const MARGIN_PX = 60; // between a word that is picked and the edges of the thread

/** `{id, range, isSelected}`: the reply, what is picked of its text, whether the browser's own selection has done so; or null. */
export const picked = signal(null);

/** The text of a reply as it is shown, or null. */
export const textOf = (id) => document.querySelector(`#${id} > .markdown`);

/** The message that something is picked of. */
export const pickedMessage = () => view.conversation.peek().get(picked.peek().id);

/** Have a person choose a word of a reply, from the first one in sight on: the focus goes to what chooses it. */
export function chooseWord(id) {
  const text = textOf(id);
  const words = text ? wordsOf(text) : [];
  const top = document.querySelector(".thread").getBoundingClientRect().top;
  const word = words.find((one) => boxOf(one).top >= top) ?? words.at(-1);
  if (!word) return;
  pick(id, word);
  afterRender(() => /** @type {HTMLElement} */ (document.querySelector(".picker [role=slider]"))?.focus());
}

function pick(id, word) {
  getSelection().removeAllRanges();
  picked.value = { id, range: rangeOf(word), isSelected: false };
  keepInSight(boxOf(word));
}

/** Pick nothing any more. */
export function pickNothing() {
  if (picked.peek()?.isSelected) getSelection().removeAllRanges();
  picked.value = null;
}

/** Pick another word: `key` is an arrow, Home or End; whether it is one of these. */
export function pickNext(key) {
  const { id, range } = picked.peek();
  const words = wordsOf(textOf(id));
  const at = Math.max(0, words.findLastIndex(({ node, from }) => range.comparePoint(node, from) <= 0));
  const next = {
    ArrowLeft: () => at - 1,
    ArrowRight: () => at + 1,
    ArrowUp: () => inNextLine(words, at, -1),
    ArrowDown: () => inNextLine(words, at, 1),
    Home: () => 0,
    End: () => words.length - 1,
  }[key]?.();
  if (next === undefined) return false;
  if (words[next]) pick(id, words[next]);
  return true;
}

/** The word above or below another one. */
function inNextLine(words, at, step) {
  const { left, top, bottom } = boxOf(words[at]);
  let best = at;
  let line = null;
  for (let index = at + step; words[index]; index += step) {
    const box = boxOf(words[index]);
    if (box.bottom > top && box.top < bottom) continue;
    if (line && (box.bottom <= line.top || box.top >= line.bottom)) break;
    if (!line || Math.abs(box.left - left) < Math.abs(boxOf(words[best]).left - left)) best = index;
    line ??= box;
  }
  return best;
}

function rangeOf({ node, from, to }) {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  return range;
}

const boxOf = (word) => rangeOf(word).getBoundingClientRect();

function keepInSight({ top, bottom }) {
  const thread = document.querySelector(".thread");
  const box = thread.getBoundingClientRect();
  if (top < box.top + MARGIN_PX || bottom > box.bottom - MARGIN_PX) thread.scrollTop += top - box.top - box.height / 2;
}

/** Which word of the reply lies under a point of the screen, picked there. */
export function pickAt(x, y) {
  const { id } = picked.peek();
  const spot = document.caretPositionFromPoint?.(x, y);
  const old = spot ? null : document.caretRangeFromPoint?.(x, y);
  const node = spot?.offsetNode ?? old?.startContainer;
  const offset = spot?.offset ?? old?.startOffset;
  const word = wordsOf(textOf(id)).find((one) => one.node === node && one.from <= offset && offset <= one.to);
  if (word) pick(id, word);
}

/**
 * Where what is picked lies in the source of its reply, in characters: `begin`, `end`, and the texts `before` and `kept`, up to
 * either. Throws what a person should read.
 */
export async function placePicked() {
  const { id, range } = picked.peek();
  const { text } = pickedMessage();
  const place = await placeOf(textOf(id), text, range);
  if (!place) throw new Error("It cannot be told where that stands in the text of the reply. Choose another word.");
  const before = text.slice(0, place.begin);
  const kept = text.slice(0, place.end);
  return { begin: characters(before).length, end: characters(kept).length, before, kept };
}

// -- the browser's own selection

let timer = 0;
let isPressed = false;

function look() {
  clearTimeout(timer);
  timer = setTimeout(takeSelection, PAUSE_MS);
}

function takeSelection() {
  if (isPressed || document.activeElement?.closest(".picker")) return;
  const selection = getSelection();
  const range = selection.isCollapsed || !selection.rangeCount ? null : selection.getRangeAt(0);
  const reply = range?.startContainer.parentElement?.closest(".thread .message.assistant > .markdown");
  if (reply && range.toString().trim()) {
    const own = range.cloneRange();
    if (!reply.contains(range.endContainer)) own.setEnd(reply, reply.childNodes.length);
    picked.value = { id: reply.parentElement.id, range: own, isSelected: true };
  } else if (picked.peek()?.isSelected) {
    picked.value = null;
  }
}

/** From now on what is selected in a reply is picked; the function that ends it. */
export function watchSelection() {
  const press = () => (isPressed = true);
  const release = () => {
    isPressed = false;
    look();
  };
  document.addEventListener("selectionchange", look);
  document.addEventListener("pointerdown", press);
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, release);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("selectionchange", look);
    document.removeEventListener("pointerdown", press);
    for (const name of ["pointerup", "pointercancel"]) document.removeEventListener(name, release);
  };
}

effect(() => {
  if (!globalThis.CSS.highlights) return; // the words are named beside the buttons
  if (picked.value) CSS.highlights.set("picked", new Highlight(picked.value.range));
  else CSS.highlights.delete("picked");
});

effect(() => {
  const id = picked.value?.id;
  if (!id) return;
  if (view.shownBranch().some((message) => message.id === id)) view.isAtEnd.value = false; // the text stays where it is
  else picked.value = null;
});
