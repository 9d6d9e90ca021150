// What the page shows: which conversation, which branch of it or which ones side by side; and the address that says so.
//
// #conv_…/msg_… is the branch through that message; several messages, with commas between them, are branches side by side. What
// a person does is a step that the browser's Back undoes; what the server tells changes the address in place.

import { batch, effect, signal } from "../../vendor/htm-preact.js";
import { afterRender, fadeIn } from "../shared/motion.js";

/** Id of the conversation that is open or being fetched; null: none, a new one may begin. */
export const followed = signal(null);
/** The `Conversation` that is open, once it has been fetched. */
export const conversation = signal(null);
/** Id of the last message of the branch that is shown. */
export const tip = signal(null);
/** Id of the message that a link led to: it is marked. */
export const linked = signal(null);
/** `{from, at}`: the message that the next one goes below, not at the end; `at`: of one being written, how many characters of it. */
export const branching = signal(null);
/** Ends of the branches that stand side by side. */
export const compared = signal(null);
/** The side that is open on a narrow screen: "list" or "map". */
export const panel = signal(null);
/** Whether the end of the branch is in sight, and stays so while it grows. */
export const isAtEnd = signal(true);
export const isLost = signal(false);
/** `{text, status, code}` of what went wrong. */
export const notice = signal(null);
/** What is read out. */
export const said = signal("");
/** Changes when the list of conversations may have. */
export const listVersion = signal(0);

const SAID_MS = 4000;
let saidTimer;
let routed = null; // the address that is shown

/** Have a screen reader say it. */
export function say(text) {
  clearTimeout(saidTimer);
  said.value = text;
  saidTimer = setTimeout(() => (said.value = ""), SAID_MS);
}

/** The messages of the branch that is shown, from its root on. */
export const shownBranch = () => conversation.value?.lineage(tip.value) ?? [];

/** What the address asks for: a conversation's id, and messages. */
export function asked() {
  const [id = "", ends = ""] = location.hash.slice(1).split("/");
  return { id, ends: ends.split(",").filter(Boolean) };
}

/** Whether the address is another one than what is shown. */
export const isElsewhere = () => location.hash !== routed;

/** Have the address say what is shown. */
function record(isStep) {
  const ends = compared.peek() ?? [linked.peek() ?? tip.peek()].filter(Boolean);
  const address = `#${conversation.peek().info.id}${ends.length ? `/${ends.join(",")}` : ""}`;
  const state = { isOwn: true, panel: panel.peek() };
  const before = history.state;
  routed = address;
  if (location.hash === address && (before?.panel ?? null) === state.panel) return;
  if (isStep && !before?.panel) history.pushState(state, "", address);
  else history.replaceState(state, "", address);
}

/** Show what the address asks for, as far as it is there. `isFirst`: the conversation has just been fetched. */
export function arrive({ isFirst = false } = {}) {
  const shown = conversation.peek();
  const ends = asked().ends.filter((id) => shown.has(id));
  const [first] = ends;
  const link = ends.length === 1 && !history.state?.isOwn ? first : null;
  const current = shown.has(tip.peek()) ? tip.peek() : shown.start();
  const end = ends.length === 1 || (isFirst && first) ? shown.tip(first) : shown.tip(current);
  fade(end, () => {
    batch(() => {
      compared.value = ends.length > 1 ? ends : null;
      linked.value = link;
      branching.value = null;
      tip.value = end;
      isAtEnd.value = isFirst && !link;
    });
    shown.choose(end);
    record(false);
    if (link) afterRender(() => document.getElementById(link)?.scrollIntoView({ block: "start" }));
  });
}

/** Do a change that shows the branch with this end: what that has instead of what is shown now fades in. */
function fade(end, change) {
  const shown = conversation.peek();
  const before = shown.lineage(tip.peek());
  const after = shown.lineage(end);
  const first = before.findIndex((message, index) => message.id !== after[index]?.id);
  return fadeIn(before[first]?.id ?? null, after[first]?.id ?? null, change);
}

/**
 * Show the branch that ends with `end`. `isStep`: a person asked for it, and Back leads to what was shown before, unless that has
 * only grown; `keepsBranching`: what the next message goes below stays, if that is still there.
 */
export function show(end, { isStep = false, keepsBranching = false } = {}) {
  const shown = conversation.peek();
  const hasGrown = compared.peek() === null && shown.lineage(end).some((message) => message.id === tip.peek());
  if (end) shown.choose(end);
  batch(() => {
    tip.value = end;
    if (isStep) linked.value = compared.value = panel.value = null;
    if (!shown.has(linked.value)) linked.value = null;
    if (!keepsBranching || !shown.has(branching.value?.from)) branching.value = null;
  });
  record(isStep && !hasGrown);
}

/** A person goes to the branch that ends with `end`; `then` is done once it is on the page. */
export function goTo(end, then = () => {}) {
  fade(end, () => show(end, { isStep: true })).then(then);
}

/** Show the branch through a message, with that in sight. */
export function reveal(id) {
  isAtEnd.value = false;
  goTo(conversation.peek().tip(id), () => document.getElementById(id)?.scrollIntoView({ block: "start" }));
}

/** Show another version of a message: the one `step` further. */
export function turn(message, step) {
  const siblings = conversation.peek().siblings(message);
  const next = siblings[siblings.findIndex((one) => one.id === message.id) + step];
  if (!next) return;
  isAtEnd.value = false;
  goTo(conversation.peek().tip(next.id), () => document.getElementById(next.id)?.focus({ preventScroll: true }));
  say(`Version ${siblings.indexOf(next) + 1} of ${siblings.length}`);
}

/** Move the focus to the message `step` further on the branch. */
export function focusNext(message, step) {
  const path = conversation.peek().lineage(tip.peek());
  const next = path[path.findIndex((one) => one.id === message.id) + step];
  if (next) document.getElementById(next.id)?.focus();
}

/** Set branches side by side; a single one is none. */
export function compare(tips) {
  const own = [...new Set(tips)];
  if (own.length < 2) return;
  batch(() => {
    compared.value = own;
    panel.value = null;
  });
  record(true);
}

/** All versions of a message side by side. */
export function compareVersions(message) {
  const shown = conversation.peek();
  compare(shown.siblings(message).map((one) => shown.tip(one.id)));
}

/** The branches side by side are these now; without two there is no comparison. */
export function compareInstead(tips) {
  compared.value = tips.length > 1 ? tips : null;
  record(false);
}

/** Go on with one branch; without `end` with the one that was shown before. */
export function endCompare(end = tip.peek()) {
  isAtEnd.value = true;
  show(conversation.peek().tip(end), { isStep: true });
}

/** The next message goes below this one; `at`: how many characters of it, of one that is being written. */
export function branchFrom(message, at) {
  const isTip = message.id === tip.peek() && at === null;
  branching.value = isTip ? null : { from: message.id, at };
  isAtEnd.value = true;
  afterRender(() => document.getElementById("composer-text")?.focus());
}

/** Show no conversation. */
export function leave() {
  batch(() => {
    for (const part of [followed, conversation, tip, linked, branching, compared, panel]) part.value = null;
    isLost.value = false;
    isAtEnd.value = true;
  });
  routed = location.hash;
}

/** Open a side on a narrow screen, or close it; so does the browser's Back. */
export function toggle(name) {
  if (panel.peek() === name) {
    closePanel();
    return;
  }
  const state = { ...history.state, panel: name };
  if (panel.peek()) history.replaceState(state, "");
  else history.pushState(state, "");
  panel.value = name;
}

/** Close the side that is open. */
export function closePanel() {
  if (!panel.peek()) return;
  panel.value = null;
  if (history.state?.panel) history.back();
}

effect(() => {
  document.title = conversation.value ? `${conversation.value.info.title} – radixkv` : "radixkv";
});
