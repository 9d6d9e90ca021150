// The outline of a conversation: its runs, and the rows that are seen of them, as in a tree of files.
//
//   Plan a trip                      the first message of a run: a root, or one that has siblings
//     ⋮ 3 turns, Where to?  ×2       its other messages, folded; the last one has two below it
//     To the sea                     the runs below it
//     To the hills

/**
 * A run: messages below each other that nothing parts, from a root or one of several siblings down to a fork or a leaf.
 *
 * @typedef {{ids: string[], above: Run | null, below: Run[], level: number}} Run
 */

/**
 * A row: the `place`-th of `count` below one other. `id`: of the message that it shows; `end`: of the last one that it stands
 * for; `numForks`: how many messages come next after its own; `isOpen`: null where nothing hangs below the row.
 *
 * @typedef {{key: string, kind: "run" | "rest" | "turn", id: string, end: string, level: number, place: number, count: number,
 *   isOpen: boolean | null, numTurns: number, numForks: number}} Row
 */

/** The key of the row that stands for all but the first message of a run. */
const restOf = (run) => `${run.ids[0]}+`;

/** The message that the key of a row names. */
export const messageOf = (key) => key.replace("+", "");

/** All runs of a conversation as it stands. O(messages), without recursion. */
export class Runs {
  /** @type {Run[]} */
  roots = [];
  numLeaves = 0;
  #holding = new Map();

  constructor(conversation) {
    const open = [{ above: null, id: null }];
    while (open.length) {
      const { above, id } = open.pop();
      for (const first of conversation.childIds(id)) {
        const run = { ids: [first], above, below: [], level: above ? above.level + 1 : 0 };
        (above?.below ?? this.roots).push(run);
        let below = conversation.childIds(first);
        for (; below.length === 1; below = conversation.childIds(below[0])) run.ids.push(below[0]);
        for (const each of run.ids) this.#holding.set(each, run);
        if (below.length) open.push({ above: run, id: run.ids.at(-1) });
        else this.numLeaves++;
      }
    }
  }

  /** The run that holds a message. */
  holding(id) {
    return this.#holding.get(id);
  }

  /** The runs that lead to messages, those that hold them with them. */
  leadingTo(ids) {
    const leading = new Set();
    for (const id of ids) for (let run = this.holding(id); run && !leading.has(run); run = run.above) leading.add(run);
    return leading;
  }
}

/**
 * The rows that are seen. `isOpen(key, isByItself)`: whether what is below a row is. Of a search, `found`: the messages that are
 * seen alone, below what leads to them, by id. O(rows), without recursion.
 */
export class Rows {
  /** @type {Row[]} */
  all = [];
  #runs;
  #isOpen;
  #isFolding; // rows can be folded and unfolded
  #places = new Map();
  #open = [];

  constructor(runs, isOpen, found = null) {
    this.#runs = runs;
    this.#isOpen = isOpen;
    this.#isFolding = !found;
    const leading = found && runs.leadingTo(found.keys());
    const seen = (below) => (found ? below.filter((run) => leading.has(run)) : below);
    this.#push(seen(runs.roots), 0);
    while (this.#open.length) {
      const { run, place, count } = this.#open.pop();
      const inner = run.ids.slice(1).filter((id) => !found || found.has(id));
      this.#addRun(run, { inner, below: seen(run.below), place, count, isFolded: !found && inner.length > 1 });
    }
  }

  /** The place among all rows of the one that shows a message, or what that is folded into; -1: it is not seen. */
  placeOf(id) {
    let run = this.#runs.holding(id);
    for (const key of run ? [id, restOf(run)] : []) if (this.#places.has(key)) return this.#places.get(key);
    for (; run; run = run.above) if (this.#places.has(run.ids[0])) return this.#places.get(run.ids[0]);
    return -1;
  }

  /** The place of a row, or of what it has been folded into; -1: it is not seen. */
  placeOfKey(key) {
    return this.#places.get(key) ?? this.placeOf(messageOf(key));
  }

  /** The place of the row that the one at a place hangs below; -1: below none. */
  above(place) {
    const { level } = this.all[place];
    let at = place - 1;
    while (at >= 0 && this.all[at].level >= level) at--;
    return at;
  }

  #push(runs, numBefore) {
    const count = numBefore + runs.length;
    for (let at = runs.length - 1; at >= 0; at--) this.#open.push({ run: runs[at], place: numBefore + at + 1, count });
  }

  #add(row) {
    this.#places.set(row.key, this.all.length);
    this.all.push(row);
  }

  /** `inner`: its messages but the first, as far as they are seen. */
  #addRun(run, { inner, below, place, count, isFolded }) {
    const [first] = run.ids;
    const end = run.ids.at(-1);
    const numInner = isFolded ? 1 : inner.length;
    const own = { place: 1, count: numInner + below.length, numTurns: 1, isOpen: null };
    const isOpen = own.count > 0 ? this.#isOpen(first, true) : null;
    const told = this.#isFolding ? isOpen : null;
    const numForks = run.ids.length === 1 ? run.below.length : 0;
    this.#add({ key: first, kind: "run", id: first, end: isOpen ? first : end, level: run.level, place, count, isOpen: told, numTurns: run.ids.length, numForks });
    if (!isOpen) return;
    let level = run.level + 1;
    if (isFolded) {
      const rest = { key: restOf(run), kind: "rest", id: end, end, level, numForks: run.below.length };
      this.#add({ ...own, ...rest, numTurns: inner.length, isOpen: this.#isOpen(rest.key, false) });
      level += 1;
      own.count = inner.length;
    }
    if (!isFolded || this.#isOpen(restOf(run), false)) {
      inner.forEach((id, at) => {
        this.#add({ ...own, key: id, kind: "turn", id, end: id, level, place: at + 1, numForks: id === end ? run.below.length : 0 });
      });
    }
    this.#push(below, numInner);
  }
}
