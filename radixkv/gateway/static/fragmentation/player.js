// One stream through three pools of one size in lockstep: measured to the end first, then played from anywhere.

import { Paged } from "./paged.js";
import { Replay } from "./replay.js";
import { Reserve } from "./reserve.js";
import { Sharing } from "./sharing.js";

/** The three ways to hand out memory: key in figures, name for people, and what makes an empty pool. */
export const WAYS = [
  { key: "reserve", name: "Reserve to the maximum", make: (settings) => new Reserve(settings) },
  { key: "paged", name: "Paged", make: (settings) => new Paged(settings) },
  { key: "sharing", name: "Paged, prefixes shared", make: (settings) => new Sharing(settings) },
];

const MAX_STEPS = 200_000;
const SLICE_MS = 12;

export class Player {
  /** `settings`: numSlots, blockSize, reply; roundTokens, of prompts in a step. */
  constructor(requests, settings) {
    this.requests = requests;
    this.settings = settings;
    this.figures = null;
    this.numSteps = 0;
    this.rewind();
  }

  rewind() {
    this.step = 0;
    this.replays = WAYS.map((way) => new Replay(way.make(this.settings), this.requests, this.settings.roundTokens));
  }

  /** Go to the end of a step. Backwards it begins anew: every replay takes the same course each time. */
  seek(step) {
    const aim = Math.max(0, Math.min(step, this.numSteps || step));
    if (aim < this.step) this.rewind();
    for (; this.step < aim; this.step += 1) {
      for (const replay of this.replays) if (!replay.hasEnded) replay.advance();
    }
  }

  /** The first step at which most tokens are at hand with shared prefixes. */
  busiestStep() {
    const { tokens } = this.figures.sharing;
    return tokens.indexOf(tokens.reduce((most, number) => Math.max(most, number), 0)) + 1;
  }

  /** Run to the end, in slices that leave the page responsive, and keep figures of every step. False where `signal` aborted. */
  async measure(signal) {
    const figures = {};
    for (const way of WAYS) {
      const replay = new Replay(way.make(this.settings), this.requests, this.settings.roundTokens);
      const own = (figures[way.key] = new Figures());
      let sliceEnd_ms = performance.now() + SLICE_MS;
      while (!replay.hasEnded && replay.step < MAX_STEPS) {
        replay.advance();
        own.note(replay);
        if (performance.now() < sliceEnd_ms) continue;
        await new Promise((done) => setTimeout(done));
        if (signal?.aborted) return false;
        sliceEnd_ms = performance.now() + SLICE_MS;
      }
      own.end(replay);
    }
    this.figures = figures;
    this.numSteps = Math.max(...WAYS.map(({ key }) => figures[key].numSteps));
    return true;
  }
}

/** What is kept of every step of one way, and what came of the whole. */
class Figures {
  constructor() {
    this.tokens = [];
    this.held = [];
    this.running = [];
    this.waiting = [];
    this.hitRate = [];
  }

  note(replay) {
    this.tokens.push(replay.numTokens);
    this.held.push(replay.memory.held);
    this.running.push(replay.running.length);
    this.waiting.push(replay.waiting.length);
    this.hitRate.push(replay.hitRate);
  }

  end(replay) {
    const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
    const numBusy = this.running.filter((count) => count > 0).length;
    this.numSteps = replay.step;
    this.numRefused = replay.numRefused;
    this.numPreempted = replay.numPreempted;
    this.numPromptTokens = replay.numPromptTokens;
    this.numFoundTokens = replay.numFoundTokens;
    this.numComputedTokens = replay.numComputedTokens;
    this.found = replay.found;
    this.meanRunning = numBusy ? sum(this.running) / numBusy : 0;
    this.mostRunning = this.running.reduce((most, count) => Math.max(most, count), 0);
    this.tokensPerSlot = sum(this.tokens) / Math.max(1, sum(this.held));
  }
}
