// How much of each branch is cached now, of those in sight: asked seldom, and not while a reply is being written.

import { effect, signal } from "../../vendor/htm-preact.js";
import * as api from "../conversation/api.js";
import * as view from "../conversation/view.js";
import { readPins } from "./pins.js";

const SETTLE_MS = 400;
const LEAST_MS = 3000; // between two questions
const FRESH_MS = 30_000; // what was told is believed so long, where nothing has changed
const REST_MS = 60_000; // after a refusal
const MOST = 100; // that the server tells at once
const AT_ONCE = { tokens: 32, share: 0.05 }; // that may be computed, of a branch that answers at once

/** What was told, by message: `{prompt_tokens, cached_tokens, computed_tokens, shape, at_ms}`. */
export const costs = signal(new Map());
/** Whether the server knows what is cached; until it has said so, it may. */
export const isToldOf = signal(true);

let wanted = () => [];
let timer = 0;
let askedAt_ms = -Infinity;
let restsUntil_ms = 0;

effect(() => {
  view.followed.value;
  costs.value = new Map();
  isToldOf.value = true;
});

/** Have the branches of messages told of soon, and again from time to time. `ids()`: those in sight by then. */
export function wantCosts(ids) {
  wanted = ids;
  schedule(SETTLE_MS);
}

/** Nobody looks any more. */
export function wantNone() {
  wanted = () => [];
  clearTimeout(timer);
}

/** How much of a branch is there: "all", "part", "none", or "" where that is not known. */
export function readiness(cost) {
  if (!cost || cost.cached_tokens === null || cost.prompt_tokens === null) return "";
  const { prompt_tokens: all, cached_tokens: cached, computed_tokens: computed } = cost;
  if (computed <= Math.max(AT_ONCE.tokens, AT_ONCE.share * all)) return "all";
  return cached >= AT_ONCE.share * all ? "part" : "none";
}

/** The same in words. */
export function readinessInWords(cost) {
  const kind = readiness(cost);
  if (!kind) return "";
  if (kind === "all") return "answers at once";
  const { prompt_tokens: all, cached_tokens: cached } = cost;
  return kind === "none" ? "computed anew" : `${cached.toLocaleString()} of ${all.toLocaleString()} tokens cached`;
}

function schedule(wait_ms) {
  clearTimeout(timer);
  if (!isToldOf.peek()) return;
  const now_ms = performance.now();
  timer = setTimeout(ask, Math.max(wait_ms, askedAt_ms + LEAST_MS - now_ms, restsUntil_ms - now_ms));
}

function isStale(id, shown) {
  const { status, text } = shown.get(id) ?? {};
  if (!text || status === "running") return false;
  const known = costs.peek().get(id);
  return !known || known.shape !== shown.shape.peek() || performance.now() - known.at_ms > FRESH_MS;
}

async function ask() {
  const shown = view.conversation.peek();
  if (!shown || shown.running.size) return; // asked again when the reply ends
  const ids = document.hidden ? [] : wanted().filter((id) => isStale(id, shown)).slice(0, MOST);
  if (ids.length) await askFor(ids, shown);
  if (shown === view.conversation.peek()) schedule(FRESH_MS);
}

async function askFor(ids, shown) {
  askedAt_ms = performance.now();
  const about = { shape: shown.shape.peek(), at_ms: askedAt_ms };
  try {
    const { messages } = await api.costs(shown.info.id, ids);
    if (shown !== view.conversation.peek()) return;
    isToldOf.value = messages.some((each) => each.cached_tokens !== null) || messages.every((each) => each.prompt_tokens === null);
    costs.value = new Map([...costs.peek(), ...messages.map(({ id, ...cost }) => [id, { ...cost, ...about }])]);
    if (isToldOf.peek()) await readPins();
  } catch {
    restsUntil_ms = performance.now() + REST_MS; // it is an extra: nobody is told
  }
}
