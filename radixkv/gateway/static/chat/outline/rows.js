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

const REST = -1; // of a run: the row that stands for all but its first message

/**
 * The rows that are seen. `isOpen(key, isByItself)`: whether what is below a row is. Of a search, `found`: the messages that are
 * seen alone, below what leads to them, by id. O(rows), without recursion; a row is made when it is asked for, since few of
 * thousands are in sight.
 */
export class Rows {
  #runs;
  #isOpen;
  #found;
  #leading;
  /** Of each row: the run, and which of its messages it shows, from 0, or REST. */
  #runOf = [];
  #turnOf = [];
  #places = new Map(); // of the rows that show one message, by its id
  #rests = new Map(); // of the others, by run

  constructor(runs, isOpen, found = null) {
    this.#runs = runs;
    this.#isOpen = isOpen;
    this.#found = found;
    this.#leading = found && runs.leadingTo(found.keys());
    const open = this.#seen(runs.roots).toReversed();
    while (open.length) {
      const run = open.pop();
      this.#add(run, 0, this.#places, run.ids[0]);
      if (!this.#opens(run)) continue;
      const isFolded = this.#isFolded(run);
      if (isFolded) this.#add(run, REST, this.#rests, run);
      if (!isFolded || this.#isOpen(restOf(run), false)) this.#inner(run).forEach((id, at) => this.#add(run, at + 1, this.#places, id));
      const below = this.#seen(run.below);
      for (let at = below.length - 1; at >= 0; at--) open.push(below[at]);
    }
  }

  get length() {
    return this.#runOf.length;
  }

  /**
   * The row at a place.
   *
   * @returns {Row | undefined}
   */
  at(place) {
    const run = this.#runOf[place];
    if (!run) return undefined;
    const turn = this.#turnOf[place];
    const inner = this.#inner(run);
    const end = run.ids.at(-1);
    const level = this.#levelOf(place);
    if (turn === 0) {
      const isOpen = this.#opens(run);
      const beside = this.#seen(run.above ? run.above.below : this.#runs.roots);
      const numBefore = run.above ? this.#numInner(run.above) : 0;
      return {
        key: run.ids[0], kind: "run", id: run.ids[0], end: isOpen ? run.ids[0] : end, level, place: numBefore + beside.indexOf(run) + 1,
        count: numBefore + beside.length, isOpen: this.#found ? null : isOpen, numTurns: run.ids.length,
        numForks: run.ids.length === 1 ? run.below.length : 0,
      };
    }
    const count = this.#numInner(run) + this.#seen(run.below).length;
    const key = restOf(run);
    if (turn === REST) {
      const isOpen = this.#isOpen(key, false);
      return { key, kind: "rest", id: end, end, level, place: 1, count, isOpen, numTurns: inner.length, numForks: run.below.length };
    }
    const id = inner[turn - 1];
    return {
      key: id, kind: "turn", id, end: id, level, place: turn, count: this.#isFolded(run) ? inner.length : count, isOpen: null, numTurns: 1,
      numForks: id === end ? run.below.length : 0,
    };
  }

  /** The place among all rows of the one that shows a message, or what that is folded into; -1: it is not seen. */
  placeOf(id) {
    let run = this.#runs.holding(id);
    let place = this.#places.get(id) ?? this.#rests.get(run);
    for (; place === undefined && run; run = run.above) place = this.#places.get(run.ids[0]);
    return place ?? -1;
  }

  /** The place of a row, or of what it has been folded into; -1: it is not seen. */
  placeOfKey(key) {
    const id = messageOf(key);
    return (id === key ? undefined : this.#rests.get(this.#runs.holding(id))) ?? this.placeOf(id);
  }

  /** The place of the row that the one at a place hangs below; -1: below none. */
  above(place) {
    const level = this.#levelOf(place);
    let at = place - 1;
    while (at >= 0 && this.#levelOf(at) >= level) at--;
    return at;
  }

  #add(run, turn, places, key) {
    places.set(key, this.length);
    this.#runOf.push(run);
    this.#turnOf.push(turn);
  }

  #levelOf(place) {
    const { level } = this.#runOf[place];
    const turn = this.#turnOf[place];
    return turn === 0 ? level : level + (turn !== REST && this.#isFolded(this.#runOf[place]) ? 2 : 1);
  }

  #seen(below) {
    return this.#found ? below.filter((run) => this.#leading.has(run)) : below;
  }

  /** The messages of a run but the first, as far as they are seen. */
  #inner(run) {
    const inner = run.ids.slice(1);
    return this.#found ? inner.filter((id) => this.#found.has(id)) : inner;
  }

  /** Whether those have a row that stands for them. */
  #isFolded(run) {
    return !this.#found && run.ids.length > 2;
  }

  /** How many rows hang below a run's first one, besides its runs. */
  #numInner(run) {
    return this.#found ? this.#inner(run).length : Math.min(1, run.ids.length - 1);
  }

  /** Whether what is below a run is seen; null where nothing is. */
  #opens(run) {
    return this.#numInner(run) + this.#seen(run.below).length > 0 ? this.#isOpen(run.ids[0], true) : null;
  }
}
