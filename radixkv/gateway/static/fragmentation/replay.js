// A stream of requests through one pool, step by step: who runs, who waits, and what came of it.
//
// A step computes up to `roundTokens` tokens of prompts and one token of every running request whose prompt is done. Who came
// first goes first. Where a running request finds no room for its next token, the one that started last gives its slots back
// and computes them again later.

import { WAIT } from "./sharing.js";

export const MAX_RUNNING = 256;

export class Replay {
  /** `memory`: one of the three, empty. `requests`: of `requestsOf`. */
  constructor(memory, requests, roundTokens) {
    this.memory = memory;
    this.requests = requests;
    this.roundTokens = roundTokens;
    this.step = 0;
    this.numCome = 0;
    this.waiting = []; // {request, known}
    this.running = []; // {request, known, computed, target}
    this.numFinished = 0;
    this.numPreempted = 0;
    this.numRefused = 0;
    this.numPromptTokens = 0;
    this.numFoundTokens = 0;
    this.numComputedTokens = 0;
    this.found = new Array(requests.length).fill(null);
  }

  get hasEnded() {
    return this.numCome === this.requests.length && !this.waiting.length && !this.running.length;
  }

  /** Tokens that running requests have, each counted for everyone who has it. */
  get numTokens() {
    return this.running.reduce((sum, each) => sum + each.computed, 0);
  }

  /** The share of prompt tokens that were found, so far. */
  get hitRate() {
    return this.numPromptTokens ? this.numFoundTokens / this.numPromptTokens : 0;
  }

  /** One step. */
  advance() {
    this.finishDone();
    for (; this.numCome < this.requests.length && this.requests[this.numCome].arrival <= this.step; this.numCome += 1) {
      const request = this.requests[this.numCome];
      this.waiting.push({ request, known: request.prompt });
    }
    this.admit();
    this.compute();
    this.step += 1;
  }

  admit() {
    let numAhead = this.running.reduce((sum, each) => sum + Math.max(0, each.known - each.computed), 0);
    for (let place = 0; place < this.waiting.length && numAhead < this.roundTokens && this.running.length < MAX_RUNNING; ) {
      const { request, known } = this.waiting[place];
      const numFound = this.memory.start(request, known);
      if (numFound === WAIT) {
        place += 1;
        continue;
      }
      if (numFound === null) {
        if (this.running.length) break;
        this.numRefused += 1; // it does not fit even alone
        this.waiting.splice(place, 1);
        continue;
      }
      const computed = Math.min(numFound, known - 1);
      if (this.found[request.index] === null) {
        this.found[request.index] = computed;
        this.numFoundTokens += computed;
        this.numPromptTokens += request.prompt;
      }
      this.waiting.splice(place, 1);
      const target = request.prompt + Math.max(0, request.generated - 1); // nothing reads the KV of a last token
      this.running.push({ request, known, computed, target });
      numAhead += known - computed;
    }
  }

  compute() {
    let left = this.roundTokens;
    for (let place = 0; place < this.running.length; place += 1) {
      const own = this.running[place];
      const isPrompt = own.computed < own.known;
      const count = isPrompt ? Math.min(left, own.known - own.computed) : Number(own.computed < own.target);
      if (isPrompt) left -= count;
      if (!count) continue;
      while (!this.memory.grow(own.request, own.computed + count)) {
        if (this.preempt() === own) return;
      }
      own.computed += count;
      this.numComputedTokens += count;
    }
  }

  /** The one that started last gives up; it comes back first. */
  preempt() {
    const own = this.running.pop();
    this.memory.finish(own.request);
    this.waiting.unshift({ request: own.request, known: Math.max(own.known, own.computed + 1) });
    this.numPreempted += 1;
    return own;
  }

  finishDone() {
    this.running = this.running.filter((own) => {
      if (own.computed < own.target) return true;
      this.memory.finish(own.request);
      this.numFinished += 1;
      return false;
    });
  }
}
