// The conversations that are listed, as far as one has scrolled: asked for page by page, and kept as what happens tells.

import { batch, computed, effect, signal } from "../../vendor/htm-preact.js";
import * as api from "../conversation/api.js";
import * as view from "../conversation/view.js";
import { paced } from "../shared/pace.js";
import { groupOf } from "./dates.js";

const PAGE = 50;
const MOST_AT_ONCE = 200; // that the server lists
const PAUSE_MS = 200;

/** Which are listed: "all" but the archived ones, the "archive", the "trash". */
export const place = signal("all");
/** The tag that all have which are listed. */
export const tag = signal(null);
/** The text that all hold which are listed. */
export const search = signal("");
/** All tags: `{tag, num_conversations}`. */
export const tags = signal([]);
export const hasMore = signal(false);
export const failure = signal(null);
/** Whether what is listed has been asked for. */
export const isLoaded = signal(false);

const known = signal(new Map()); // by id
let oldest = Infinity; // `updated` of the last one that was asked for; pinned ones may be older
let asked = 0; // how often the list was asked for from its beginning
let changes = 0; // that came meanwhile
let isAnother = false; // what is known belongs to another part than the one that is looked at
let more = null; // the further page that is being asked for
let pause;

/** What is listed, as it is shown: `{name, conversations}` each, the pinned ones first, then by when they were written to. */
export const groups = computed(() => {
  const now = new Date();
  const isTrash = place.value === "trash";
  const all = [...known.value.values()].sort((one, other) => Number(other.pinned) - Number(one.pinned) || other.updated - one.updated);
  const found = Map.groupBy(all, (one) => (isTrash ? "Trash" : one.pinned ? "Pinned" : groupOf(one.updated, now)));
  return [...found].map(([name, conversations]) => ({ name, conversations }));
});

/** The same in one list. */
export const listed = computed(() => groups.value.flatMap(({ conversations }) => conversations));

function query() {
  /** @type {Record<string, any>} */
  const said = {};
  if (search.peek()) said.search = search.peek();
  if (tag.peek()) said.tag = tag.peek();
  if (place.peek() === "archive") said.archived = true;
  if (place.peek() === "trash") said.trash = true;
  return said;
}

function belongs({ trashed, archived, tags: own }) {
  if ((trashed !== null) !== (place.peek() === "trash") || (tag.peek() && !own.includes(tag.peek()))) return false;
  return place.peek() === "trash" || archived === (place.peek() === "archive") || (archived && Boolean(search.peek()));
}

/** List another part; what is listed now goes once that is there. */
export function look(part) {
  batch(() => {
    if ("place" in part) {
      place.value = part.place;
      known.value = new Map();
      isLoaded.value = false;
    }
    if ("tag" in part) tag.value = part.tag;
    if ("search" in part) search.value = part.search;
  });
  isAnother = true;
  clearTimeout(pause);
  if ("search" in part) pause = setTimeout(load, PAUSE_MS);
  else load();
}

/** Ask for the newest ones; the older ones stay as they are, unless it is for all that are listed (`isWhole`). */
export async function load({ isWhole = false } = {}) {
  const turn = ++asked;
  const before = changes;
  const wanted = isWhole ? Math.max(PAGE, known.peek().size) : PAGE;
  const found = new Map();
  let isMore = true;
  let last = Infinity;
  try {
    const about = query();
    if (place.peek() !== "trash" && !about.search) {
      for (const one of (await api.list({ ...about, pinned: true, limit: MOST_AT_ONCE })).conversations) found.set(one.id, asKnown(one));
    }
    for (let count = 0; isMore && count < wanted; ) {
      const page = await api.list({ ...about, ...(count && { before: last }), limit: Math.min(MOST_AT_ONCE, wanted - count) });
      for (const one of page.conversations) found.set(one.id, asKnown(one));
      count += page.conversations.length;
      last = page.conversations.at(-1)?.updated ?? last;
      isMore = page.has_more;
      if (turn !== asked) return;
    }
    if (before !== changes) {
      load({ isWhole }); // what was answered may be older than the change
      return;
    }
  } catch (error) {
    if (turn === asked) failure.value = error.message;
    return;
  }
  const isKept = !isAnother && isMore && oldest < last;
  if (isKept) for (const one of known.peek().values()) if (one.updated < last && !one.pinned && !found.has(one.id)) found.set(one.id, one);
  batch(() => {
    known.value = found;
    if (!isKept) {
      oldest = last;
      hasMore.value = isMore;
    }
    failure.value = null;
    isLoaded.value = true;
  });
  isAnother = false;
}

/** The same as before where it has not changed, so that nothing is shown anew. */
function asKnown(one) {
  const before = known.peek().get(one.id);
  return before?.version === one.version && !one.hits && !before.hits ? before : one;
}

/** The next page, once. */
export function loadMore(limit = PAGE) {
  if (!hasMore.peek()) return null;
  more ??= loadPage(limit).finally(() => (more = null));
  return more;
}

async function loadPage(limit) {
  const turn = asked;
  try {
    const page = await api.list({ ...query(), limit, ...(oldest < Infinity && { before: oldest }) });
    if (turn !== asked) return;
    oldest = page.conversations.at(-1)?.updated ?? oldest;
    batch(() => {
      put(page.conversations, { isAsked: true });
      hasMore.value = page.has_more;
    });
  } catch (error) {
    failure.value = error.message;
  }
}

/** All that there are. */
export async function loadAll() {
  while (hasMore.peek() && !failure.peek()) await loadMore(MOST_AT_ONCE);
}

/** Conversations are as told now; those that do not belong to what is listed go. `isAsked`: they were asked for. */
export function put(conversations, { isAsked = false } = {}) {
  const all = new Map(known.peek());
  if (!isAsked) changes += 1;
  for (const one of conversations) {
    const before = all.get(one.id);
    const isListed = before || isAsked || one.pinned || !hasMore.peek() || one.updated > oldest;
    if (!belongs(one)) all.delete(one.id);
    else if (isListed && (before || isAsked || !search.peek())) all.set(one.id, { ...before, ...one });
  }
  known.value = all;
}

/** Conversations are gone. */
export function forget(ids) {
  const all = new Map(known.peek());
  changes += 1;
  for (const id of ids) all.delete(id);
  known.value = all;
}

/** Ask for all tags; without an answer they stay as they were. */
export async function loadTags() {
  try {
    tags.value = (await api.tags()).tags;
  } catch {
    return; // the list tells what is wrong
  }
  if (tag.peek() && !tags.peek().some((one) => one.tag === tag.peek())) look({ tag: null });
}

/** Keep what is listed as it is on the server, from now on. */
export function keepListed() {
  view.listVersion.subscribe(paced(load));
  let told = [];
  effect(() => {
    const info = view.conversation.value?.info;
    if (!info) return;
    if (known.peek().has(info.id)) put([info]);
    const before = told;
    told = [info.id, ...info.tags];
    if (before[0] === info.id && before.join("\n") !== told.join("\n")) loadTags();
  });
  addEventListener("focus", () => load({ isWhole: true })); // other tabs begin and change conversations too
  loadTags();
}
