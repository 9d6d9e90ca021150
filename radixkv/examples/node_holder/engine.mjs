// An engine with a fake model on a holder: three branches, a copy, a wait and a broken stream; it checks every slot.
// npm install && node engine.mjs ADDRESS PROTO_DIR     with RESTARTS=1 it waits until the service was restarted, and goes on
// where `radixkv.proto_dir()` in Python names the folder
import assert from "node:assert/strict";
import { EventEmitter, once } from "node:events";
import { Holder } from "./holder.mjs";

const BLOCK = 16, slots = [], tables = new Map();
// The KV of a position is a hash of all tokens up to it, so that a wrong slot shows.
const kv = (tokens, state = 1) => tokens.map((token) => (state = Math.imul(state ^ token, 16777619) >>> 0));
const slot = (id, position) => tables.get(id)[Math.floor(position / BLOCK)] * BLOCK + (position % BLOCK);
const pack = (tokens) => Buffer.from(Uint32Array.from(tokens).buffer);
const range = (from, to) => Array.from({ length: to - from }, (_, index) => from + index);

function apply({ kind, ops, ...result }, id = result.seqId) {
  assert.notEqual(kind, "error", result.message);
  for (const { copy: { src, dst, numTokens } } of ops) // before the table is used
    range(0, numTokens).forEach((offset) => (slots[dst * BLOCK + offset] = slots[src * BLOCK + offset]));
  const packed = new Uint8Array(result.blockTable ?? result.blockIds);
  tables.set(id, [...(tables.get(id) ?? []).slice(0, result.firstChanged ?? 0), ...new Int32Array(packed.buffer)]);
  return result;
}
const compute = (id, tokens, from) => range(from, tokens.length).forEach((at) => (slots[slot(id, at)] = kv(tokens)[at]));
const check = (id, tokens) => assert.deepEqual(range(0, tokens.length).map((at) => slots[slot(id, at)]), kv(tokens));

const [address = process.env.SERVICE, protoDir = process.env.PROTOS] = process.argv.slice(2);
const events = new EventEmitter();
const pool = { name: "node", numBlocks: 64, blockSize: BLOCK };
const holder = new Holder(address, protoDir, pool, (notice) => events.emit("notice", notice), () => events.emit("restart"));
const prompt = range(1000, 1040), edited = [...prompt.slice(0, 22), ...range(1, 20)];
const waits = { acquire: { tokens: pack([...prompt, 5]), seqId: 2, waits: true } };
const [opened, pending] = await holder.step([{ acquire: { tokens: pack(prompt), seqId: 1 } }, waits]);
apply(opened);
assert.equal(pending.kind, "pending"); // sequence 1 computes the same tokens
compute(1, prompt, opened.numStoredTokens);
const published = once(events, "notice");
const inserted = holder.step([{ insert: { seqId: 1, numComputed: 40 } }]);
holder.stream.cancel(); // the network breaks; the Step is sent again and applied once
await inserted;
assert.equal((await published)[0].numTokens, pending.numTokens);
const [second, { children }] = await holder.step([waits, { fork: { seqId: 1, position: 22, n: 1, seqIds: { values: [3] } } }]);
assert.equal(apply(second).numStoredTokens, 40);
compute(2, [...prompt, 5], 40);
apply({ ...children[0], kind: "fork" });
const [room] = await holder.step([{ extend: { seqId: 3, numTokens: edited.length } }]);
assert.equal(room.ops.length, 1); // the fork parts inside a block, which is copied
apply(room, 3);
compute(3, edited, 22);
[[1, prompt], [2, [...prompt, 5]], [3, edited]].forEach(([id, tokens]) => check(id, tokens));
const releases = [1, 2, 3].map((seqId) => ({ release: { seqId, keep: true } }));
const inserts = [{ insert: { seqId: 2, numComputed: 41 } }];
inserts.push({ insert: { seqId: 3, numComputed: 41, newTokens: pack(edited.slice(22)) } });
await holder.step([...inserts, ...releases]);
const [found] = await holder.step([{ match: { tokens: pack(edited) } }]);
assert.equal(found.numTokens, 41);
if (process.env.RESTARTS) {
  const open = { acquire: { tokens: pack(range(3000, 3040)), seqId: 4 } };
  apply((await holder.step([open]))[0]);
  compute(4, range(3000, 3040), 0);
  await holder.step([{ insert: { seqId: 4, numComputed: 40 } }]);
  const restarted = once(events, "restart");
  console.log("restart the service now");
  await restarted; // sequences are gone: each begins again, on the whole blocks that it had computed
  assert.equal(apply((await holder.step([open]))[0]).numStoredTokens, 32);
  check(4, range(3000, 3032));
}
for (const tokens of [prompt, [...prompt, 5], edited]) { // all is cached, in the blocks that hold it
  const [{ seqId, ...reopened }] = await holder.step([{ acquire: { tokens: pack(tokens) } }]);
  assert.equal(apply(reopened, seqId).numStoredTokens, tokens.length);
  check(seqId, tokens);
}
await holder.close();
console.log(`3 branches, ${holder.answered} Steps over ${holder.hello.streamNumber} streams, every slot as computed`);
