// A holder from protos/ alone: attach, a Step (acquire, insert, fork, release), the Step again, Match by a reader, goodbye.
import assert from "node:assert/strict";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const options = { includeDirs: [process.env.PROTOS], longs: Number, oneofs: true, defaults: true };
const files = ["radixkv/v1/workers.proto", "radixkv/v1/prefix_cache.proto"];
const { Workers, PrefixCache } = grpc.loadPackageDefinition(loader.loadSync(files, options)).radixkv.v1;
const insecure = grpc.credentials.createInsecure();
const stream = new Workers(process.env.SERVICE, insecure).Attach();
const answers = stream[Symbol.asyncIterator]();
const next = async (kind) => {
  for (;;) {
    const { value } = await answers.next();
    if (value[kind]) return value[kind];
  }
};
const tokens = Buffer.from(Uint32Array.from({ length: 40 }, (_, n) => n).buffer);
stream.write({ hello: { pool: { name: "node", numBlocks: 64, blockSize: 16 }, incarnation: 7, canAdopt: true } });
const attached = await next("attached");
assert.equal(attached.nextStep, 1);
const ops = [
  { acquire: { tokens, seqId: 1 } },
  { insert: { seqId: 1, numComputed: 40 } },
  { match: { tokens } },
  { fork: { seqId: 1, position: 22, n: 1, seqIds: { values: [2] } } },
  { release: { seqId: 9, keep: true } },
];
stream.write({ step: { number: 1, ops } });
const { results } = await next("stepAnswer");
assert.deepEqual(results.map((result) => result.result), ["acquire", "insert", "match", "fork", "error"]);
stream.write({ step: { number: 1, ops } });
assert.deepEqual((await next("stepAnswer")).results, results); // a repeat gets the stored answer
const reader = new PrefixCache(process.env.SERVICE, insecure);
const match = (request) => new Promise((done, fail) => reader.Match(request, (error, answer) => (error ? fail(error) : done(answer))));
const [found] = (await match({ tokens, pool: "node" })).pools;
assert.equal(found.numTokens, 40);
stream.write({ heartbeat: {} });
await next("heartbeatAnswer");
stream.write({ goodbye: {} });
stream.end();
reader.close();
