// What the tree page knows: what the server tells, and what is chosen.

import { call, follow } from "../page.js";
import { signal } from "../vendor/htm-preact.js";
import { Gauges } from "./gauges.js";
import { Tree } from "./model.js";
import { LEFT, count, describe, span } from "./words.js";

export const CACHE = "/v1/radixkv/cache";
const TICK_MS = 500;
const LABELS_AT_ONCE = 500;
const LABELS_SETTLE_MS = 120;
const LONG_LOST_MS = 1500;
const LEFT_TOLD_MS = 30_000;

const still = matchMedia("(prefers-reduced-motion: reduce)");

export const tree = new Tree();
export const gauges = new Gauges();
export const hello = signal(null);
/** Key of the pool that is shown; empty: the first. */
export const pool = signal("");
/** Of the gateway: waiting, live, lost, and when it was lost. */
export const link = signal({ state: "waiting", at_ms: 0 });
/** Of the cache service, as the gateway tells it. */
export const status = signal({ state: "waiting", message: "" });
export const refusal = signal(null);
export const selected = signal(null);
export const where = signal("");
/** Ids of the nodes that the search has found; null: nothing is searched for. */
export const found = signal(null);
export const said = signal({ text: "", isBad: false });
export const isList = signal(false);
/** What has left the tree of late, by kind: `{ number, at_ms }`; of what ended nodes, of what was evicted blocks. */
export const left = signal({});
/** Changes as time goes on. */
export const tick = signal(0);

export function say(text, isBad = false) {
  said.value = { text, isBad };
}

export function isLongLost() {
  tick.value;
  return link.value.state === "lost" && performance.now() - link.value.at_ms > LONG_LOST_MS;
}

/** What has left of late in words: `[kind, words]`, the latest last. */
export function leftWords() {
  tick.value;
  const now_ms = performance.now();
  const recent = Object.entries(left.value).filter(([, { at_ms }]) => now_ms - at_ms < LEFT_TOLD_MS);
  return recent.map(([kind, { number, at_ms }]) => {
    return [kind, `${count(number, kind === "ended" ? "node" : "block")} ${LEFT[kind]} ${span((now_ms - at_ms) / 1000)} ago`];
  });
}

/** The node in which the chat's branch ends that an address names, `#conversation/message`; null: it names none. */
export async function placeOf(hash) {
  const [conversation, message] = hash.slice(1).split("/");
  if (!message) return null;
  try {
    const { id, pool: key, num_cached_tokens: cached } = await call("POST", `${CACHE}/place`, { conversation, message });
    if (!cached) say("Nothing of this branch is cached now.");
    else if (key !== hello.value?.key) show(key); // asked again once that pool is listed
    return id;
  } catch (error) {
    say(error.message, true);
    return null;
  }
}

/** Choose a node, or none. */
export function select(node) {
  selected.value = node ?? null;
  where.value = node ? describe(node, tree.now_s()) : "";
  if (node && node.label === null) wantLabels([node]);
}

// -- what the server tells

const heard = {
  hello(told) {
    const before = hello.value;
    hello.value = told;
    if (before?.run === told.run && before.key === told.key) return;
    select(null);
    if (before && before.key !== told.key) {
      gauges.clear();
      tree.forget();
      left.value = {};
    }
  },
  status(told) {
    status.value = told;
  },
  points(told) {
    gauges.add(told);
  },
  gone(told) {
    noteLeft(tree.leave(told.gone, !still.matches));
  },
  tree(told) {
    noteLeft(tree.apply(told, !still.matches) ?? []);
    keepSelected();
  },
};

/** What was chosen stays chosen, also when it is there no more. */
function keepSelected() {
  const known = selected.value && tree.nodes.get(selected.value.id);
  if (known) selected.value = known;
}

function noteLeft(gone) {
  const at_ms = performance.now();
  const next = { ...left.value };
  for (const [, kind, blocks] of gone) {
    const before = next[kind];
    const number = kind === "ended" ? 1 : blocks;
    next[kind] = { number: number + (before && at_ms - before.at_ms < LEFT_TOLD_MS ? before.number : 0), at_ms };
  }
  if (gone.length) left.value = next;
}

/** Ends what is followed of the pool that is shown. */
let following = new AbortController();

/** Show another pool. */
export function show(key) {
  pool.value = key;
  following.abort();
}

/** A path of the pool that is shown. */
export function ofPool(path) {
  return pool.value ? `${CACHE}/${path}?pool=${pool.value}` : `${CACHE}/${path}`;
}

/** Follow the cache, for as long as the page is there. */
export async function watch() {
  setInterval(() => {
    if (document.hidden) return;
    if (tree.sweep()) keepSelected();
    tick.value += 1;
  }, TICK_MS);
  const onState = (state) => (link.value = { state, at_ms: state === link.value.state ? link.value.at_ms : performance.now() });
  while (!refusal.value) {
    following = new AbortController();
    try {
      await follow(ofPool("events"), { onEvent: (name, data) => heard[name]?.(data), onState, signal: following.signal });
    } catch (error) {
      if (pool.value) pool.value = ""; // it is gone: the first is shown
      else refusal.value = error;
    }
  }
}

// -- the text of what is to be seen

const wanted = new Set();
const asked = new Set();
let asking = null;

export function wantLabels(nodes) {
  for (const node of nodes) if (!asked.has(node.id)) wanted.add(node.id);
  if (wanted.size) asking ??= setTimeout(askForLabels, LABELS_SETTLE_MS);
}

async function askForLabels() {
  const ids = [...wanted].slice(0, LABELS_AT_ONCE);
  for (const id of ids) {
    wanted.delete(id);
    asked.add(id);
  }
  try {
    tree.name((await call("POST", ofPool("labels"), { ids })).labels);
    if (selected.value) where.value = describe(selected.value, tree.now_s());
  } catch (error) {
    if (error.status) say(error.message, true);
  }
  for (const id of ids) asked.delete(id);
  asking = wanted.size ? setTimeout(askForLabels, LABELS_SETTLE_MS) : null;
}
