// Reserve to the maximum: every request gets one contiguous span, for its prompt and the longest reply that it may ask for.
//
//     |  span of 3  | hole |     span of 7     | hole      |        first fit: the first hole that is long enough

import { EXTERNAL } from "./slots.js";

export class Reserve {
  /** `reply`: tokens set aside for the reply of each. */
  constructor({ numSlots, reply }) {
    this.numSlots = numSlots;
    this.held = 0;
    this.reply = reply;
    this.spans = []; // by where they start
    this.byRequest = new Map();
  }

  /** How many tokens were found: none ever is. null: no hole is long enough. */
  start(request) {
    const length = this.spanOf(request);
    let start = 0;
    let place = 0;
    for (; place < this.spans.length && this.spans[place].start - start < length; place += 1) {
      start = this.spans[place].start + this.spans[place].length;
    }
    if (this.numSlots - start < length) return null;
    const span = { start, length };
    this.spans.splice(place, 0, span);
    this.byRequest.set(request.index, span);
    this.held += length;
    return 0;
  }

  spanOf(request) {
    return request.prompt + this.reply;
  }

  /** Whether there is room for so many tokens: the span is there already. */
  grow() {
    return true;
  }

  finish(request) {
    const span = this.byRequest.get(request.index);
    this.byRequest.delete(request.index);
    this.spans.splice(this.spans.indexOf(span), 1);
    this.held -= span.length;
  }

  /** Slots that the request holds. */
  room(request) {
    return this.byRequest.get(request.index).length;
  }

  /** `visit(slot, position, count)` for the slots of positions from `from` to `to`. */
  ranges(request, from, to, visit) {
    if (to > from) visit(this.byRequest.get(request.index).start + from, from, to - from);
  }

  /** Mark the holes that are too short for the request that waits first. */
  paintRest(slots, waiting) {
    const need = waiting ? this.spanOf(waiting) : 0;
    let start = 0;
    for (const span of [...this.spans, { start: this.numSlots, length: 0 }]) {
      if (span.start - start < need) slots.states.fill(EXTERNAL, start, span.start);
      start = span.start + span.length;
    }
  }
}
