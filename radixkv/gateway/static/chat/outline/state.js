// What of the open conversation the outline shows.

import { computed, effect, signal } from "../../vendor/htm-preact.js";
import { keep } from "../conversation/settings.js";
import * as view from "../conversation/view.js";
import { Rows, Runs, messageOf } from "./rows.js";

const KEY = "radixkv.folds.";

/** What is looked for in the conversation; also what its list was searched for. */
export const sought = signal("");
/** The key of the row that the keys act on; null: that of the branch that is shown. */
export const active = signal(null);
/** Keys of the rows that are not as they are by themselves, folded or unfolded. */
const turned = signal(new Set());

effect(() => {
  turned.value = restored(view.followed.value);
  active.value = null;
});

/** The runs of the conversation; they change only as messages come and go. */
export const runs = computed(() => {
  const shown = view.conversation.value;
  if (!shown?.structure.value) return null;
  return new Runs(shown);
});

const pattern = computed(() => {
  const text = sought.value.trim();
  return text ? new RegExp(text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&").replace(/\s+/g, "\\s+"), "iu") : null;
});

/** Where the messages hold what is looked for, by id: `[begin, end]`; null: nothing is looked for. */
export const hits = computed(() => {
  const looked = pattern.value;
  const shown = view.conversation.value;
  if (!looked || !shown?.shape.value) return null;
  const found = new Map();
  for (const id of shown.ids()) {
    const hit = looked.exec(shown.get(id).text);
    if (hit) found.set(id, [hit.index, hit.index + hit[0].length]);
  }
  return found;
});

/** The rows that are seen; null: there is no message. */
export const seen = computed(() => {
  if (!runs.value) return null;
  const changed = turned.value;
  return new Rows(runs.value, (key, isByItself) => hits.value !== null || isByItself !== changed.has(key), hits.value);
});

/** The place of the row that the keys act on. */
export function activePlace() {
  const rows = seen.value;
  const place = active.value === null ? -1 : rows.placeOfKey(active.value);
  return Math.max(0, place < 0 ? rows.placeOf(view.tip.value) : place);
}

/** Fold what is below a row, or unfold it. */
export function turn(key) {
  const next = new Set(turned.peek());
  if (!next.delete(key)) next.add(key);
  turned.value = next;
  const shown = view.conversation.peek();
  const kept = [...next].filter((one) => shown.has(messageOf(one)));
  keep(KEY + view.followed.peek(), kept.length ? JSON.stringify(kept) : "");
}

function restored(id) {
  try {
    return new Set(id ? JSON.parse(localStorage.getItem(KEY + id) ?? "[]") : []);
  } catch {
    return new Set();
  }
}
