// The radix tree as the server tells it: nodes by id, and the row on which each is drawn.

import { signal } from "../vendor/htm-preact.js";
import { wordsOf } from "./words.js";

/** How long a node that has gone stays to be seen, in milliseconds. */
export const FADE_MS = 1600;

const FIELDS = [
  "id", "parent", "namespace", "position", "tokens", "blocks", "isTail", "lockRef", "sequences", "lastAccess_s",
  "pinnedUntil_s", "priority",
];

export class Tree {
  nodes = new Map();
  /** Namespaces by name: `{ name, row, rows, children }`, with what their nodes come to. */
  namespaces = [];
  /** All nodes, parents before children, in the order of their rows. */
  order = [];
  numRows = 0;
  maxDepth = 1;
  isListed = signal(false);
  /** Grows with every change. */
  turn = signal(0);
  #arriving = null;
  #clock = { service_s: 0, page_ms: 0 };

  /** The time of the service's clock, by which nodes tell theirs. */
  now_s() {
    return this.#clock.service_s + (performance.now() - this.#clock.page_ms) / 1000;
  }

  /** Take over what an event `tree` tells; what has left, or null where more is to come. */
  apply({ reset, done, now_s, nodes, gone }, keepsGhosts) {
    this.#clock = { service_s: now_s, page_ms: performance.now() };
    if (reset) this.#arriving = new Map();
    const target = this.#arriving ?? this.nodes;
    for (const row of nodes) {
      const node = Object.fromEntries(FIELDS.map((name, index) => [name, row[index]]));
      const known = target.get(node.id);
      node.namespace ||= target.get(node.parent)?.namespace ?? "";
      target.set(node.id, known ? renew(known, node) : fresh(node));
    }
    if (!done) return null;
    if (this.#arriving) [this.nodes, this.#arriving, this.isListed.value] = [this.#arriving, null, true];
    return this.leave(gone, keepsGhosts);
  }

  /** Another pool is shown, of which nothing is known yet. */
  forget() {
    [this.nodes, this.#arriving, this.isListed.value] = [new Map(), null, false];
    this.#arrange();
  }

  /** Nodes have left the tree, `[id, kind, blocks]` each: they stay as ghosts for a moment, or go at once. Those not known of before. */
  leave(gone, keepsGhosts) {
    const news = gone.filter(([id]) => !id || this.nodes.get(id)?.goneAt_ms === 0);
    for (const [id, kind] of news) {
      if (!id) continue; // its end alone has gone
      if (keepsGhosts) Object.assign(this.nodes.get(id), { goneAt_ms: performance.now(), goneAs: kind });
      else this.nodes.delete(id);
    }
    this.#arrange();
    return news;
  }

  /** Drop the ghosts that have faded; whether there were any. */
  sweep() {
    const before_ms = performance.now() - FADE_MS;
    let hasSwept = false;
    for (const node of this.nodes.values()) {
      if (node.goneAt_ms && node.goneAt_ms < before_ms) hasSwept = this.nodes.delete(node.id);
    }
    if (hasSwept) this.#arrange();
    return hasSwept;
  }

  /** Take over labels by the ids of nodes. */
  name(labels) {
    for (const [id, label] of Object.entries(labels)) {
      const node = this.nodes.get(Number(id));
      if (node) Object.assign(node, { label, words: wordsOf(label) });
    }
    this.turn.value += 1;
  }

  get numGhosts() {
    return this.order.reduce((sum, node) => sum + (node.goneAt_ms ? 1 : 0), 0);
  }

  get numNodes() {
    return this.nodes.size - this.numGhosts;
  }

  /** Its parent, or undefined below a root. */
  parentOf(node) {
    return this.nodes.get(node.parent);
  }

  /** The nodes from the root down to it. */
  pathOf(node) {
    const path = [];
    for (let above = node; above; above = this.parentOf(above)) path.unshift(above);
    return path;
  }

  /** Those that hang where it hangs, itself among them. */
  siblingsOf(node) {
    return this.parentOf(node)?.children ?? this.namespaces.find((space) => space.name === node.namespace)?.children ?? [];
  }

  /** The node drawn at a depth, in tokens, and a row. */
  at(depth, row) {
    const space = holder(this.namespaces, row);
    let node = space && holder(space.children, row);
    while (node && depth >= node.position + node.tokens) {
      const child = holder(node.children, row);
      if (!child || depth < child.position) return null;
      node = child;
    }
    return node && depth >= node.position ? node : null;
  }

  /** A row for each leaf, and each node beside all of its leaves; siblings in the order in which they came. */
  #arrange() {
    const spaces = new Map();
    for (const node of this.nodes.values()) node.children = [];
    for (const node of this.nodes.values()) {
      const parent = this.nodes.get(node.parent);
      if (parent) node.namespace = parent.namespace;
      const space = spaces.get(node.namespace) ?? { name: node.namespace, children: [] };
      spaces.set(node.namespace, space);
      (parent ?? space).children.push(node);
    }
    this.namespaces = [...spaces.values()].sort((a, b) => a.name.localeCompare(b.name));
    this.order = [];
    this.maxDepth = 1;
    let row = 0;
    for (const space of this.namespaces) {
      space.row = row;
      row = this.#place(space, row + 1);
      space.rows = row - space.row;
      sum(space);
    }
    this.numRows = row;
    this.turn.value += 1;
  }

  #place(space, firstRow) {
    let row = firstRow;
    const pending = sorted(space.children).toReversed();
    while (pending.length) {
      const node = pending.pop();
      if (node.isClosed) {
        node.rows = row - node.row;
        node.isClosed = false;
        sum(node);
        continue;
      }
      node.row = row;
      this.order.push(node);
      this.maxDepth = Math.max(this.maxDepth, node.position + node.tokens);
      if (node.children.length) {
        node.isClosed = true;
        pending.push(node, ...sorted(node.children).toReversed());
      } else {
        node.rows = 1;
        row += 1;
        sum(node);
      }
    }
    return row;
  }
}

function sorted(nodes) {
  return nodes.sort((a, b) => a.id - b.id);
}

function fresh(node) {
  return { ...node, goneAt_ms: 0, goneAs: "", children: [], label: null, words: [], pinSpan_s: 1, isClosed: false };
}

/** The same object with what is told of it now, so that what refers to it goes on doing so. */
function renew(known, node) {
  const isLonger = known.label !== null && node.tokens !== known.tokens && known.tokens < 32;
  if (node.pinnedUntil_s !== known.pinnedUntil_s) known.pinSpan_s = 1;
  Object.assign(known, node);
  known.goneAt_ms = 0;
  if (isLonger) known.label = null;
  return known;
}

/** What a node and all below it come to. */
function sum(above) {
  const own = above.id === undefined ? { nodes: 0, blocks: 0, sequences: 0, end: 0, last_s: -Infinity } : ownSum(above);
  for (const { below } of above.children) {
    own.nodes += below.nodes;
    own.blocks += below.blocks;
    own.sequences += below.sequences;
    own.end = Math.max(own.end, below.end);
    own.last_s = Math.max(own.last_s, below.last_s);
  }
  above.below = own;
}

function ownSum(node) {
  const last_s = node.lockRef ? Infinity : node.lastAccess_s;
  return { nodes: 1, blocks: node.blocks, sequences: node.sequences, end: node.position + node.tokens, last_s };
}

/** Of a list in the order of rows the one that covers a row. */
function holder(list, row) {
  let [low, high] = [0, list.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const each = list[middle];
    if (row < each.row) high = middle - 1;
    else if (row >= each.row + each.rows) low = middle + 1;
    else return each;
  }
  return null;
}
