// Branches that were pinned from here: what is cached of them stays for a time from each use. The server tells how long still.

import { effect, signal } from "../../vendor/htm-preact.js";
import * as api from "../conversation/api.js";
import { keep } from "../conversation/settings.js";
import * as view from "../conversation/view.js";

const KEY = "radixkv.pins.";
const TICK_MS = 10_000;

/** By message: `{cache_namespace, num_tokens, ttl_s, endsAt_ms}`, the time since 1970. */
export const pins = signal({});
const now_ms = signal(Date.now());

effect(() => {
  pins.value = restored(view.followed.value);
});
effect(() => {
  if (!Object.keys(pins.value).length) return undefined;
  const timer = setInterval(() => (now_ms.value = Date.now()), TICK_MS);
  return () => clearInterval(timer);
});

/** For how many seconds still a branch is pinned; 0: it is not. */
export function pinnedFor_s(id) {
  const pin = pins.value[id];
  return pin ? Math.max(0, (pin.endsAt_ms - Math.max(now_ms.value, Date.now())) / 1000) : 0;
}

/** Pin the branch that ends with a message; how many tokens of it are. */
export async function pin(id, ttl_s) {
  const owner = view.followed.peek();
  const told = await api.pin(owner, id, ttl_s);
  if (told.num_tokens && owner === view.followed.peek()) write({ ...pins.peek(), [id]: known(told) });
  return told.num_tokens;
}

/** End the pin of a branch. */
export async function unpin(id) {
  const owner = view.followed.peek();
  try {
    await api.unpin(owner, id);
  } catch (error) {
    if (error.code !== "not_pinned") throw error; // its time was over
  }
  if (owner !== view.followed.peek()) return;
  write(Object.fromEntries(Object.entries(pins.peek()).filter(([one]) => one !== id)));
}

/** Ask how long the pins that were set here hold still: each use of a branch begins its time anew. */
export async function readPins() {
  const before = pins.peek();
  if (!Object.keys(before).length) return;
  const { data } = await api.pins();
  if (before !== pins.peek()) return;
  const isSame = (one) => (other) => one.num_tokens === other.num_tokens && one.cache_namespace === other.cache_namespace;
  const still = Object.entries(before).map(([id, one]) => [id, data.find(isSame(one))]);
  write(Object.fromEntries(still.filter(([, one]) => one).map(([id, one]) => [id, known(one)])));
}

const known = ({ cache_namespace, num_tokens, ttl_s, remaining_s }) => {
  return { cache_namespace, num_tokens, ttl_s, endsAt_ms: Date.now() + 1000 * remaining_s };
};

function write(next) {
  pins.value = next;
  keep(KEY + view.followed.peek(), Object.keys(next).length ? JSON.stringify(next) : "");
}

function restored(id) {
  try {
    return (id && JSON.parse(localStorage.getItem(KEY + id))) ?? {};
  } catch {
    return {};
  }
}
