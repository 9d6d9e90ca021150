// What stands in every slot of a pool at one moment.

export const FREE = 0;
export const USED = 1;
export const SHARED = 2;
export const CACHED = 3;
export const RESERVED = 4;
export const INTERNAL = 5;
export const EXTERNAL = 6;
export const NUM_STATES = 7;

const NOBODY = 0xffffffff;

export class Slots {
  /**
   * states: one of the above for each slot. brought: which request brought the token that is there first; NOBODY where there is
   * none. readers: how many running requests read it.
   */
  constructor(numSlots) {
    this.states = new Uint8Array(numSlots);
    this.brought = new Uint32Array(numSlots);
    this.readers = new Uint16Array(numSlots);
    this.counts = new Array(NUM_STATES).fill(0);
  }

  /** Look at a replay as it stands. O(slots + tokens of running requests). */
  look(replay) {
    const { memory, running } = replay;
    this.states.fill(FREE);
    this.brought.fill(NOBODY);
    this.readers.fill(0);
    memory.paintRest(this, replay.waiting.length ? replay.waiting[0].request : null);
    for (const { request, computed } of running) this.layOut(memory, request, computed);
    for (const { request, computed } of running) this.read(memory, request, computed);
    this.counts.fill(0);
    for (const state of this.states) this.counts[state] += 1;
  }

  /** What is set aside and empty: reserved, if it will be written, internal fragmentation if it never will be. */
  layOut(memory, request, computed) {
    memory.ranges(request, computed, memory.room(request), (slot, position, count) => {
      for (let index = 0; index < count; index += 1) {
        if (this.states[slot + index] !== FREE) continue;
        this.states[slot + index] = position + index < request.length ? RESERVED : INTERNAL;
      }
    });
  }

  read(memory, request, computed) {
    memory.ranges(request, 0, computed, (slot, position, count) => {
      for (let index = 0; index < count; index += 1) {
        const numReaders = (this.readers[slot + index] += 1);
        this.states[slot + index] = numReaders > 1 ? SHARED : USED;
        this.brought[slot + index] = request.history[position + index];
      }
    });
  }

  /** `count` slots from `slot` on are in `state` and hold the tokens of `history` from `position` on. */
  put(state, slot, history, position, count) {
    this.states.fill(state, slot, slot + count);
    this.brought.set(history.subarray(position, position + count), slot);
  }

  /** The request that brought the token of a slot; null where there is no token. */
  ownerOf(slot) {
    const index = this.brought[slot];
    return index === undefined || index === NOBODY ? null : index;
  }
}
