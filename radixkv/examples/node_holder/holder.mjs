// The holder's end of Workers.Attach: lease, heartbeats, numbered Steps, notices, a broken stream that resumes, and a
// restarted service that gets its tree back.
import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { once } from "node:events";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { Kept } from "./kept.mjs";

const FINAL = ["INVALID_ARGUMENT", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "UNAUTHENTICATED"];

// `step(ops)` resolves with one result per op, { kind, ...fields }; a failed op's has the kind "error". `onRestart()` is called when
// the service was restarted: all sequences are gone, every `step` under way rejects, and what was cached is cached again. Once the
// lease is lost every `step` rejects: a new Holder, which is a new incarnation, begins with an empty tree.
export class Holder {
  constructor(address, protoDir, pool, onNotice, onRestart = () => {}) {
    const options = { includeDirs: [protoDir], longs: Number, oneofs: true, defaults: true };
    const { Workers } = grpc.loadPackageDefinition(loader.loadSync("radixkv/v1/workers.proto", options)).radixkv.v1;
    const channel = { "grpc.max_receive_message_length": -1, "grpc.max_reconnect_backoff_ms": 500 };
    this.client = new Workers(address, grpc.credentials.createInsecure(), channel);
    this.hello = { pool, incarnation: randomInt(1, 2 ** 48 - 1), holderName: "node", canAdopt: true, features: ["records"] };
    Object.assign(this, { onNotice, onRestart });
    this.hello.streamNumber = this.numSent = this.answered = this.noticed = 0;
    this.unanswered = []; // Steps, oldest first; the first `numSent` are on the stream
    this.held = []; // Notices whose Step has no answer yet
    this.awaited = []; // Pending answers without a notice yet
    this.kept = new Kept();
    this.heardAt = Date.now();
    this.open();
  }

  open() {
    const stream = (this.stream = this.client.Attach());
    this.hello.streamNumber += 1;
    stream.on("data", (message) => stream === this.stream && this.receive(message));
    stream.on("end", () => this.broken(stream, { code: grpc.status.UNAVAILABLE }));
    stream.on("error", (error) => this.broken(stream, error));
    stream.write({ hello: { ...this.hello, ...this.acknowledged(), awaited: this.awaited } });
  }

  acknowledged() {
    return { acknowledgedThrough: this.answered, noticesAcknowledgedThrough: this.noticed };
  }

  step(ops) {
    if (this.error) return Promise.reject(this.error);
    return new Promise((resolve, reject) => this.unanswered.push({ ops, resolve, reject }) && this.send());
  }

  send() { // what the window allows
    while (this.limits && this.numSent < Math.min(this.unanswered.length, this.limits.maxUnacknowledgedSteps)) {
      const number = this.answered + this.numSent + 1;
      this.stream.write({ step: { number, ops: this.unanswered[this.numSent++].ops, ...this.acknowledged() } });
    }
  }

  receive({ message, attached, stepAnswer, notices }) {
    this.heardAt = Date.now();
    if (message === "attached") {
      if (this.ttlMs && !attached.resumed) this.adopt(attached.maxOpsPerStep);
      [this.limits, this.ttlMs] = [attached, attached.leaseTtlMs];
      this.numSent = 0; // unanswered Steps are sent again, under their numbers
      this.pulse = setInterval(() => this.beat(), this.ttlMs / 3);
    } else if (message === "stepAnswer") {
      assert.equal(stepAnswer.number, ++this.answered);
      this.numSent -= 1;
      if (stepAnswer.records) this.kept.keep(stepAnswer.records);
      this.awaited.push(...stepAnswer.results.flatMap(({ pending }) => pending ?? []));
      this.unanswered.shift().resolve(stepAnswer.results.map((each) => ({ kind: each.result, ...each[each.result] })));
    } else if (message === "notices" && notices.number === this.noticed + 1) { // a repeated one is dropped
      this.noticed += 1;
      this.held.push(notices);
    }
    while (this.held.length && this.held[0].afterStep <= this.answered) {
      const { journal, notices: ready } = this.held.shift();
      journal.forEach((change) => this.kept.change(change));
      const isOf = (each) => ({ seqId, numTokens }) => seqId === each.seqId && numTokens === each.numTokens;
      this.awaited = this.awaited.filter((each) => !ready.some(isOf(each)));
      setImmediate(() => ready.forEach(this.onNotice)); // after the code that awaits the answer
    }
    this.send();
  }

  adopt(maxOps) { // the service was restarted: it gets the cache back, and no sequence
    this.held.splice(0).forEach(({ journal }) => journal.forEach((each) => this.kept.change(each, false)));
    const lost = this.unanswered.splice(0), ops = this.kept.ops();
    while (ops.length) this.unanswered.push({ ops: ops.splice(0, maxOps), resolve() {}, reject() {} });
    this.onRestart();
    lost.forEach(({ reject }) => reject(new Error("the service was restarted: begin every sequence again")));
  }

  beat() {
    if (Date.now() - this.heardAt > this.ttlMs) this.stream.cancel(); // a dead connection
    else this.stream.write({ heartbeat: this.acknowledged() });
  }

  broken(stream, error) {
    if (stream !== this.stream) return;
    clearInterval(this.pulse);
    [this.limits, this.stream] = [null, null];
    if (FINAL.includes(grpc.status[error.code]) || Date.now() - this.heardAt > (this.ttlMs ?? 10_000)) { // the lease is lost: make a new Holder
      this.error = error;
      this.unanswered.splice(0).forEach(({ reject }) => reject(error));
    } else setTimeout(() => this.open(), 50);
  }

  async close() { // ends the lease at once
    const stream = this.stream;
    [this.stream, this.error] = [null, new Error("this holder was closed")];
    clearInterval(this.pulse);
    stream.end({ goodbye: {} });
    await once(stream, "status");
    this.client.close();
  }
}
