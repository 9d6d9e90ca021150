// What is played, under which conditions, and which moment of it is shown.

import { CallError, callText } from "../page.js";
import { batch, computed, signal } from "../vendor/htm-preact.js";
import { Player } from "./player.js";
import { SCENE, sceneStream } from "./scene.js";
import { Slots } from "./slots.js";
import { StreamError, readStream, requestsOf } from "./stream.js";

const ASSUMED_STEP_S = 0.05;
const LARGEST_POOL = 1 << 20;
const SHOW_MS = 90; // numbers change no faster than they can be read
/** @type {Record<string, {name: string, path?: string, make?: () => any}>} */
export const SOURCES = {
  recorded: { name: "A recorded run of branching chats", path: "/static/fragmentation/recorded.json" },
  scene: { name: SCENE.name, make: sceneStream },
  live: { name: "This server's last requests", path: "/v1/radixkv/replay" },
};

export const source = signal("recorded");
export const stream = signal(null);
/** numSlots, blockSize, reply, rate, share */
export const settings = signal(null);
/** Of these settings once it is measured. */
export const player = signal(null);
/** The moment, with a fraction. */
export const step = signal(0);
/** The step whose numbers are shown. */
export const shown = signal(0);
export const isPlaying = signal(false);
export const speed = signal(2);
/** The request that is followed, and the one under the pointer. */
export const chosen = signal(null);
export const pointed = signal(null);
export const notice = signal("");
export const slots = computed(() => player.value?.replays.map((replay) => new Slots(replay.memory.numSlots)) ?? []);
let measuring = new AbortController();

export const step_s = () => stream.value.step_s ?? ASSUMED_STEP_S;

// -- the stream and the conditions

export async function load(from, file = null) {
  try {
    const own = file ? null : SOURCES[from];
    const name = file ? file.name : own.name;
    const read = own?.make ? own.make() : readStream(name, file ? await file.text() : await callText("GET", own.path));
    batch(() => {
      [stream.value, source.value, settings.value, notice.value] = [read, from, usualSettings(read), ""];
    });
  } catch (error) {
    if (!(error instanceof StreamError || error instanceof CallError)) throw error;
    const hasNone = from === "live" && error instanceof StreamError;
    notice.value = hasNone ? "This server has answered no request of yours yet. Chat first, then come back." : error.message;
    return;
  }
  await rebuild(true);
}

/** A pool in which reserving runs a few at once: that is where the ways differ to the eye. */
function usualSettings(read) {
  const lengths = read.requests.map((row) => row.prompt);
  const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
  const reply = Math.max(16, read.longestReply);
  const sizes = poolSizes(read, reply);
  const numSlots = read.numSlots ?? sizes.find((size) => size >= 4 * (mean + reply)) ?? sizes[sizes.length - 1];
  return { numSlots, blockSize: 16, reply, rate: 1, share: 1 };
}

/** From a pool that holds the longest request to one that holds dozens. */
export function poolSizes(read, reply) {
  const longest = Math.max(...read.requests.map((row) => row.prompt)) + reply;
  const sizes = [];
  for (let power = 8; 1 << power <= LARGEST_POOL; power += 1) sizes.push(1 << power, 3 << (power - 1));
  const fitting = sizes.filter((size) => size % 128 === 0 && size >= longest + 128).slice(0, 14);
  return read.numSlots ? [...new Set([...fitting, read.numSlots])].sort((one, other) => one - other) : fitting;
}

export function replies(read) {
  const usual = Math.max(16, read.longestReply);
  const longest = Math.max(16, ...read.requests.map((row) => row.generated));
  return [...new Set([longest, usual, ...[1.5, 2, 3, 4, 6, 8].map((times) => Math.round(usual * times))])].sort((a, b) => a - b);
}

export function set(changes) {
  const next = { ...settings.value, ...changes };
  const sizes = poolSizes(stream.value, next.reply);
  if (!sizes.includes(next.numSlots)) next.numSlots = sizes.find((size) => size >= next.numSlots) ?? sizes[0];
  settings.value = next;
  rebuild(false);
}

export const reset = () => set(usualSettings(stream.value));

/** Measure the stream under the settings. It begins at rest where there is most to see; later the moment stays the same share. */
async function rebuild(begins) {
  measuring.abort();
  measuring = new AbortController();
  const { signal: ends } = measuring;
  const [read, own, before] = [stream.value, settings.value, player.value];
  const next = new Player(requestsOf(read, { ...own, step_s: step_s() }), { ...own, roundTokens: read.roundTokens });
  if (!(await next.measure(ends)) || ends.aborted) return;
  const isFirst = begins || !before;
  const aim = isFirst ? next.busiestStep() : (step.value / Math.max(1, before.numSteps)) * next.numSteps;
  batch(() => {
    player.value = next;
    if (isFirst) isPlaying.value = false;
    if (isFirst || chosen.value >= next.requests.length) chosen.value = pointed.value = null;
    seek(aim);
  });
}

// -- playing

/** Go to the moment; `isTold`: its numbers are shown, too. */
export function seek(aim, isTold = true) {
  const { value: own } = player;
  own.seek(Math.floor(aim));
  for (const [place, replay] of own.replays.entries()) slots.value[place].look(replay);
  batch(() => {
    step.value = aim;
    if (isTold) shown.value = Math.floor(aim);
  });
}

export function toggle() {
  isPlaying.value = !isPlaying.value;
  if (!isPlaying.value) return;
  if (step.value >= player.value.numSteps) seek(0);
  let [played_ms, told_ms] = [performance.now(), 0];
  const tick = (now_ms) => {
    if (!isPlaying.value) return;
    const passed_s = Math.min(0.1, Math.max(0, now_ms - played_ms) / 1000); // a hidden tab does not jump
    played_ms = now_ms;
    const aim = Math.min(player.value.numSteps, step.value + (passed_s * speed.value) / step_s());
    isPlaying.value = aim < player.value.numSteps;
    const isTold = now_ms - told_ms > SHOW_MS || !isPlaying.value;
    if (isTold) told_ms = now_ms;
    seek(aim, isTold);
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}
