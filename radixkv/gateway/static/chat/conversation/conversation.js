// A conversation as the tree that it is: messages by id, the branch that is looked at, and what the server tells of changes.
//
//   system ── user ── assistant ── user ── assistant      a branch: from a root down to a leaf
//               │         └─ assistant                    regenerated: a sibling
//               └─ user (edited) ── assistant

import { batch, signal } from "../../vendor/htm-preact.js";

/** Who a message is of, by its role. */
export const NAMES = { system: "Instructions", user: "You", assistant: "Reply" };
const NONE = [];

/**
 * Each message is a signal of its own, so that one that grows concerns nobody else. Whoever shows more than one message reads
 * `shape`, which changes with all but the text of messages under way; whoever shows how they hang together reads `structure`,
 * which changes only as messages come and go.
 */
export class Conversation {
  shape = signal(0);
  structure = signal(0);
  /** Ids of the replies that are being written; changes with `shape`. */
  running = new Set();
  #info = signal(null);

  /** @param {{conversation: object, messages: object[]}} snapshot as the server tells it */
  constructor(snapshot) {
    this.#chosen = new Map();
    this.load(snapshot);
  }

  #messages; // a signal by id
  #children; // ids by parent id
  #chosen; // by parent id: the child whose branch was looked at last

  /** Take in the whole state; the branch that is looked at stays, where it is still there. */
  load({ conversation, messages }) {
    const before = this.#messages ?? new Map();
    this.#messages = new Map();
    this.#children = new Map();
    this.running.clear();
    batch(() => {
      this.info = conversation;
      for (const message of messages) this.#put(message, { cell: before.get(message.id), isInOrder: true });
    });
  }

  get info() {
    return this.#info.value;
  }

  set info(info) {
    this.#info.value = info;
  }

  get size() {
    return this.#messages.size;
  }

  get isEmpty() {
    return this.size === 0;
  }

  /** Ids of all messages. */
  ids() {
    return this.#messages.keys();
  }

  /** Ids of the messages below `id`, oldest first; of the roots below null. They are not to be changed. */
  childIds(id) {
    return this.#children.get(id) ?? NONE;
  }

  get(id) {
    return this.#messages.get(id)?.peek();
  }

  /** A message as the signal that tells of its changes. */
  cell(id) {
    return this.#messages.get(id);
  }

  has(id) {
    return this.#messages.has(id);
  }

  /** Messages below `id`, oldest first; roots below null. */
  children(id) {
    return this.childIds(id).map((child) => this.get(child));
  }

  /** The versions of a message, itself among them, oldest first. */
  siblings(message) {
    return this.children(message.parent);
  }

  /** From its root down to `id`. */
  lineage(id) {
    const path = [];
    for (let at = this.get(id); at; at = this.get(at.parent)) path.push(at);
    return path.reverse();
  }

  /** The end of the branch below `id` that was looked at last, or that grew last. */
  tip(id) {
    let at = id;
    for (;;) {
      const below = this.#children.get(at);
      if (!below) return at;
      const chosen = this.#chosen.get(at);
      at = below.includes(chosen) ? chosen : below.at(-1);
    }
  }

  /** Where the conversation is opened: the end of the branch that grew last; null where it is empty. */
  start() {
    const head = this.info.head;
    return this.has(head) ? this.tip(head) : this.tip(null);
  }

  /** Remember that the branch through `id` is looked at. */
  choose(id) {
    for (const message of this.lineage(id)) this.#chosen.set(message.parent, message.id);
  }

  /** What all replies have taken from the cache and computed, in tokens. */
  totals() {
    let read = 0;
    let cached = 0;
    const counted = new Set();
    for (const cell of this.#messages.values()) {
      const { id, details } = cell.peek();
      if (!details?.prompt_tokens) continue;
      const generation = details.generation ?? id; // drafts have read one prompt together
      if (counted.has(generation)) continue;
      counted.add(generation);
      read += details.prompt_tokens;
      cached += details.cached_tokens ?? 0;
    }
    return { read, cached };
  }

  /** How many messages hang below `id`. O(of them). */
  numBelow(id) {
    let number = -1;
    for (const open = [id]; open.length; number++) open.push(...this.childIds(open.pop()));
    return number;
  }

  // -- what the server tells

  /** A message is new, or has changed: each change has a higher `seq`, and may be told twice. */
  put(message) {
    const known = this.get(message.id);
    if (known && known.seq >= message.seq) return;
    this.#put(message);
  }

  /** The same of several, at once. */
  putAll(messages) {
    batch(() => messages.forEach((message) => this.put(message)));
  }

  /** Text, or a thought, was added to a message under way. */
  grow({ id, text, thinking = "", seq }) {
    const message = this.get(id);
    if (!message || message.seq >= seq) return;
    const details = thinking ? { ...message.details, thinking: (message.details?.thinking ?? "") + thinking } : message.details;
    this.cell(id).value = { ...message, text: message.text + text, details, seq };
  }

  /** Messages are gone. */
  remove(ids) {
    for (const id of ids) {
      const message = this.get(id);
      if (!message) continue;
      this.#messages.delete(id);
      this.#children.delete(id);
      this.#chosen.delete(id);
      this.running.delete(id);
      const rest = (this.#children.get(message.parent) ?? NONE).filter((one) => one !== id);
      if (rest.length) this.#children.set(message.parent, rest);
      else this.#children.delete(message.parent);
    }
    batch(() => {
      this.shape.value += 1;
      this.structure.value += 1;
    });
  }

  #put(message, { cell = this.cell(message.id) ?? signal(message), isInOrder = false } = {}) {
    const isNew = !this.#messages.has(message.id);
    if (isNew) {
      this.#messages.set(message.id, cell);
      this.#hang(message, isInOrder);
    }
    if (message.status === "running") this.running.add(message.id);
    else this.running.delete(message.id);
    batch(() => {
      cell.value = message;
      this.shape.value += 1;
      if (isNew) this.structure.value += 1;
    });
  }

  /** Behind its siblings; one that has come back stands where it stood. `isInOrder`: they come as they stand. */
  #hang({ id, parent, created }, isInOrder) {
    const siblings = this.#children.get(parent);
    if (!siblings) {
      this.#children.set(parent, [id]);
      return;
    }
    const next = isInOrder ? -1 : siblings.findIndex((one) => this.get(one).created > created);
    siblings.splice(next < 0 ? siblings.length : next, 0, id);
  }
}

/** A new message's id, chosen here so that sending it twice stores it once. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is there only over HTTPS or on this machine
  return `msg_${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Ids of the replies that are asked for together with, or as, `id`. */
export function replyIds(id, n) {
  return Array.from({ length: n }, (_, index) => `msg_${id.slice(5)}${index}`);
}

/** The beginning of a message, on one line. */
export function excerpt(text, length = 60) {
  const line = text.trimStart().slice(0, 4 * length).replace(/\s+/g, " ").trim();
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

/** The characters of a text as the server counts them. */
export const characters = (text) => [...text];

/** The end of a message, on one line. */
export function ending(text, length = 50) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > length ? `…${line.slice(1 - length)}` : line;
}
