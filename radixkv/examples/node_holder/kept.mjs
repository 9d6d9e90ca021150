// What a restarted service is given back: the latest record of each block, unread, and the quotas and pins of the pool.
export class Kept {
  constructor() {
    [this.records, this.quotas, this.pins] = [new Map(), new Map(), new Map()];
  }

  keep({ blockIds, records }) { // an empty record: none is kept
    new Int32Array(new Uint8Array(blockIds).buffer).forEach((id, at) => {
      this.records.delete(id);
      if (records[at].length) this.records.set(id, records[at]);
    });
  }

  // A change by another client's call. After a Step that has no answer a block may lack a COPY, so that no record of it is kept.
  change({ records, pin, unpin, setQuota }, isAnswered = true) {
    if (records) this.keep(isAnswered ? records : { ...records, records: records.records.map(() => "") });
    if (setQuota) this.quotas.set(setQuota.namespace, { setQuota });
    const pinned = pin ?? unpin, key = pinned && [pinned.namespace, pinned.tokens.toString("hex")].join();
    if (pinned) this.pins.delete(key);
    if (pin) this.pins.set(key, { pin });
  }

  ops() { // quotas twice, where one that grows may wait for another that shrinks
    const block = ([id, record]) => ({ adoptBlocks: { blockIds: Buffer.from(Int32Array.of(id).buffer), records: [record] } });
    return [...this.quotas.values(), ...this.quotas.values(), ...[...this.records].map(block), ...this.pins.values()];
  }
}
