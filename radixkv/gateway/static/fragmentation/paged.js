// Paged: a request takes a block when it has filled the one before, wherever one is free; its block table keeps them in order.

export class Paged {
  constructor({ numSlots, blockSize }) {
    this.blockSize = blockSize;
    this.numBlocks = Math.floor(numSlots / blockSize);
    this.numSlots = this.numBlocks * blockSize;
    this.free = Array.from({ length: this.numBlocks }, (_, block) => this.numBlocks - 1 - block);
    this.tables = new Map();
  }

  get held() {
    return (this.numBlocks - this.free.length) * this.blockSize;
  }

  /** Take the blocks of the first `known` tokens. How many were found: none ever is. null: they are not free. */
  start(request, known) {
    const numNeeded = Math.ceil(known / this.blockSize);
    if (numNeeded > this.free.length) return null;
    this.tables.set(request.index, this.free.splice(this.free.length - numNeeded, numNeeded).reverse());
    return 0;
  }

  /** Whether there is room for so many tokens: takes a block where the last one is full. */
  grow(request, computed) {
    const table = this.tables.get(request.index);
    if (computed <= table.length * this.blockSize) return true;
    if (!this.free.length) return false;
    table.push(this.free.pop());
    return true;
  }

  finish(request) {
    this.free.push(...this.tables.get(request.index).reverse());
    this.tables.delete(request.index);
  }

  /** Slots that the request holds. */
  room(request) {
    return this.tables.get(request.index).length * this.blockSize;
  }

  /** `visit(slot, position, count)` for the slots of positions from `from` to `to`, block by block. */
  ranges(request, from, to, visit) {
    const table = this.tables.get(request.index);
    for (let position = from; position < to; ) {
      const offset = position % this.blockSize;
      const count = Math.min(this.blockSize - offset, to - position);
      visit(table[Math.floor(position / this.blockSize)] * this.blockSize + offset, position, count);
      position += count;
    }
  }

  /** No hole is too short: any free block serves anybody. */
  paintRest() {}
}
