// The page on fragmentation: one stream of requests through three pools, played over time under conditions that the reader sets.

import { html, render } from "../vendor/htm-preact.js";
import { About, Outcome, Sentences } from "./outcome.js";
import { Choice, Follow, PlayBar, Pool, count, percent } from "./parts.js";
import { Player, WAYS } from "./player.js";
import { Lines } from "./lines.js";
import { PoolView, readPalette } from "./pool_view.js";
import { Slots } from "./slots.js";
import { StreamError, readStream, requestsOf } from "./stream.js";
import { CallError, callText, showHeader } from "../page.js";

const ASSUMED_STEP_S = 0.05;
const BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64, 128];
const RATES = [0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 10];
const SHARES = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
const LARGEST_POOL = 1 << 20;
const SHOW_MS = 90; // numbers change no faster than they can be read
const SOURCES = {
  recorded: { name: "A recorded run of branching chats", path: "/static/fragmentation/recorded.json" },
  live: { name: "This server's last requests", path: "/v1/radixkv/replay" },
};

const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const isNarrow = matchMedia("(max-width: 520px)").matches; // the conditions are folded at first
const stage = document.querySelector("#stage");
const data = document.querySelector("#data");

const state = {
  source: "recorded",
  stream: null,
  settings: null, // numSlots, blockSize, reply, rate, share
  player: null, // of these settings once it is measured
  step: 0, // with a fraction
  isPlaying: false,
  speed: 5,
  chosen: null, // the request that is followed
  pointed: null, // the one under the pointer
  notice: "",
};
const views = new Map();
let slots = [];
let palette = null;
let measuring = new AbortController();
let played_ms = 0;
let shown_ms = 0;

const step_s = () => state.stream.step_s ?? ASSUMED_STEP_S;

// -- the stream and the conditions

async function load(source, file = null) {
  try {
    const name = file ? file.name : SOURCES[source].name;
    const stream = readStream(name, file ? await file.text() : await callText("GET", SOURCES[source].path));
    state.stream = stream;
    state.source = source;
    state.settings = usualSettings(stream);
    state.notice = "";
  } catch (error) {
    if (!(error instanceof StreamError || error instanceof CallError)) throw error;
    const hasNone = source === "live" && error instanceof StreamError;
    state.notice = hasNone ? "This server has answered no request of yours yet. Chat first, then come back." : error.message;
    show();
    return;
  }
  await rebuild({ begins: true });
}

/** A pool in which reserving runs a few at once: that is where the ways differ to the eye. */
function usualSettings(stream) {
  const lengths = stream.requests.map((row) => row.prompt);
  const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
  const reply = Math.max(16, stream.longestReply);
  const sizes = poolSizes(stream, reply);
  const numSlots = sizes.find((size) => size >= 4 * (mean + reply)) ?? sizes[sizes.length - 1];
  return { numSlots, blockSize: 16, reply, rate: 1, share: 1 };
}

/** From a pool that holds the longest request to one that holds dozens. */
function poolSizes(stream, reply) {
  const longest = Math.max(...stream.requests.map((row) => row.prompt)) + reply;
  const sizes = [];
  for (let power = 8; 1 << power <= LARGEST_POOL; power += 1) sizes.push(1 << power, 3 << (power - 1));
  const fitting = sizes.filter((size) => size % 128 === 0 && size >= longest + 128);
  return fitting.slice(0, 14);
}

function replies(stream) {
  const usual = Math.max(16, stream.longestReply);
  const longest = Math.max(16, ...stream.requests.map((row) => row.generated));
  return [...new Set([longest, usual, ...[1.5, 2, 3, 4, 6, 8].map((times) => Math.round(usual * times))])].sort((a, b) => a - b);
}

function set(changes) {
  const settings = { ...state.settings, ...changes };
  const sizes = poolSizes(state.stream, settings.reply);
  if (!sizes.includes(settings.numSlots)) settings.numSlots = sizes.find((size) => size >= settings.numSlots) ?? sizes[0];
  state.settings = settings;
  rebuild({ begins: false });
}

/** Measure the stream under the settings; the moment shown stays the same share of the way. */
async function rebuild({ begins }) {
  measuring.abort();
  measuring = new AbortController();
  const { signal } = measuring;
  const { stream, settings } = state;
  const player = new Player(requestsOf(stream, { ...settings, step_s: step_s() }), { ...settings, roundTokens: stream.roundTokens });
  show();
  if (!(await player.measure(signal)) || signal.aborted) return;
  const isFirst = begins || !state.player;
  const share = isFirst ? 0 : state.step / Math.max(1, state.player.numSteps);
  state.player = player;
  state.step = isFirst && isCalm ? player.busiestStep() : share * player.numSteps;
  slots = player.replays.map((replay) => new Slots(replay.memory.numSlots));
  if (begins) {
    state.chosen = state.pointed = null;
    if (!isCalm) play();
  } else if (state.chosen !== null && state.chosen >= player.requests.length) state.chosen = null;
  turn();
}

// -- playing

function play() {
  if (state.step >= state.player.numSteps) state.step = 0;
  state.isPlaying = true;
  played_ms = performance.now();
  requestAnimationFrame(tick);
}

function tick(now_ms) {
  if (!state.isPlaying) return;
  const passed_s = Math.min(0.1, Math.max(0, now_ms - played_ms) / 1000); // a hidden tab does not jump
  played_ms = now_ms;
  state.step = Math.min(state.player.numSteps, state.step + (passed_s * state.speed) / step_s());
  if (state.step >= state.player.numSteps) state.isPlaying = false;
  if (now_ms - shown_ms > SHOW_MS || !state.isPlaying) {
    shown_ms = now_ms;
    turn();
  } else {
    look();
    draw();
  }
  if (state.isPlaying) requestAnimationFrame(tick);
}

/** Go to the moment, and show everything as it is then. */
function turn() {
  look();
  show();
  draw();
}

function look() {
  const { player } = state;
  player.seek(Math.floor(state.step));
  for (const [place, replay] of player.replays.entries()) slots[place].look(replay);
}

function draw() {
  if (!state.player) return;
  palette ??= readPalette(document.body);
  const followed = state.pointed ?? state.chosen;
  const { replays, settings } = state.player;
  for (const [place, way] of WAYS.entries()) {
    views.get(way.key)?.draw(slots[place], {
      blockSize: way.key === "reserve" ? 0 : settings.blockSize,
      palette,
      followed: followed === null ? null : slotsOf(replays[place], slots[place], followed),
    });
  }
}

/** 1 for every slot that a running request holds, or that holds what an earlier one brought. */
function slotsOf(replay, own, index) {
  const mask = new Uint8Array(own.states.length);
  const running = replay.running.find(({ request }) => request.index === index);
  if (running) {
    replay.memory.ranges(running.request, 0, replay.memory.room(running.request), (slot, _position, number) => {
      mask.fill(1, slot, slot + number);
    });
  } else {
    for (let slot = 0; slot < mask.length; slot += 1) mask[slot] = Number(own.brought[slot] === index);
  }
  return mask;
}

// -- following one request

function point(place, event) {
  const slot = event.type === "pointerleave" ? null : views.get(WAYS[place].key).slotAt(event, slots[place].states.length);
  const pointed = slot === null ? null : slots[place].ownerOf(slot);
  if (pointed === state.pointed) return;
  state.pointed = pointed;
  show();
  draw();
}

function choose(index) {
  state.chosen = index;
  show();
  draw();
}

function describe(request) {
  const { replays } = state.player;
  const whereabouts = WAYS.map((way, place) => `${way.name.toLowerCase()}: ${whereabout(replays[place], request)}`);
  const parent = request.parent === null ? "" : `, the first ${count(request.shared)} as in request ${request.parent + 1}`;
  return html`<strong>Request ${request.index + 1}</strong>: a prompt of ${count(request.prompt)} tokens${parent}; a reply of${" "}
    ${count(request.generated)}. Now ${whereabouts.join("; ")}.`;
}

function whereabout(replay, request) {
  const running = replay.running.find((each) => each.request === request);
  if (running) {
    const found = replay.found[request.index];
    const held = replay.memory.room(request);
    return `${count(running.computed)} tokens in ${count(held)} slots${found ? `, ${count(found)} of them found` : ""}`;
  }
  if (replay.waiting.some((each) => each.request === request)) return "waits";
  return request.arrival >= replay.step ? "has not come yet" : "done";
}

// -- showing

function Stage() {
  const { player, settings, stream } = state;
  if (!stream) return html`<p class="words notice danger" role="alert">${state.notice}</p>`;
  return html`
    ${state.notice && html`<p class="notice" role="alert">${state.notice}</p>`}
    <${Conditions} stream=${stream} settings=${settings} />
    ${player ? html`<${Replayed} player=${player} />` : html`<p class="soft">The stream is being played once to its end.</p>`}
  `;
}

function Conditions({ stream, settings }) {
  const sizes = poolSizes(stream, settings.reply);
  const asked = (event) => load(event.target.value);
  const picked = (event) => event.target.files.length && load("file", event.target.files[0]);
  const inSlots = (number) => `${count(number)} slots`;
  return html`<div class="source">
    <label for="source">Requests</label>
    <select id="source" value=${state.source} onChange=${asked}>
      ${Object.entries(SOURCES).map(([key, { name }]) => html`<option value=${key}>${name}</option>`)}
      ${state.source === "file" && html`<option value="file">${stream.name}</option>`}
    </select>
    <button onClick=${() => document.getElementById("file").click()}>A file…</button>
    <input id="file" type="file" accept=".json,.jsonl" hidden aria-label="A file of requests" onChange=${picked} />
    <button onClick=${() => set(usualSettings(stream))}>As at the beginning</button>
  </div>
  <details class="conditions" open=${!isNarrow}>
    <summary>Conditions</summary>
    <div class="sliders">
    <${Choice} id="pool" label="Pool" choices=${sizes} value=${settings.numSlots} show=${inSlots}
      onChange=${(numSlots) => set({ numSlots })} />
    <${Choice} id="block" label="Block" choices=${BLOCK_SIZES} value=${settings.blockSize} show=${inSlots}
      onChange=${(blockSize) => set({ blockSize })} />
    <${Choice} id="reply" label="Reply reserved" choices=${replies(stream)} value=${settings.reply} show=${inSlots}
      onChange=${(reply) => set({ reply })} />
    <${Choice} id="rate" label="Requests come" choices=${RATES} value=${settings.rate} show=${(rate) => `${rate}× as fast`}
      onChange=${(rate) => set({ rate })} />
    <${Choice} id="share" label="Branches kept" choices=${SHARES} value=${settings.share} show=${percent}
      onChange=${(share) => set({ share })} />
    </div>
  </details>`;
}

function Replayed({ player }) {
  const { figures, numSteps, replays, requests } = player;
  const step = Math.floor(state.step);
  const shown = state.pointed ?? state.chosen;
  const lines = { figures, numSteps, step, format: count };
  const toggle = () => {
    if (state.isPlaying) state.isPlaying = false;
    else play();
    show();
  };
  const seek = (aim) => {
    state.step = aim;
    turn();
  };
  const change = (speed) => {
    state.speed = speed;
    show();
  };
  return html`
    <${PlayBar} isPlaying=${state.isPlaying} step=${step} numSteps=${numSteps} step_s=${step_s()} speed=${state.speed}
      onToggle=${toggle} onSeek=${seek} onSpeed=${change} />
    <div class="pools">
      ${WAYS.map(
        (way, place) => html`<${Pool} key=${way.key} way=${way} counts=${slots[place].counts} replay=${replays[place]}
          onCanvas=${(canvas) => keep(way.key, canvas)} onPoint=${(event) => point(place, event)}
          onChoose=${() => choose(state.pointed)} />`,
      )}
    </div>
    <${Follow} requests=${requests} chosen=${state.chosen} shown=${shown} describe=${describe} onChoose=${choose} />
    <div class="charts">
      <${Lines} ...${lines} title="Tokens at hand" figure="tokens" />
      <${Lines} ...${lines} title="Requests that run" figure="running" />
      <${Lines} ...${lines} title="Requests that wait" figure="waiting" />
      <${Lines} ...${lines} title="Prompt tokens found" figure="hitRate" format=${percent} keepsLast=${true} most=${1} />
    </div>
    <div class="words">
      <h2>What one sees</h2>
      <${Sentences} figures=${figures} settings=${player.settings} />
    </div>
    <${Outcome} figures=${figures} step_s=${step_s()} numRequests=${requests.length} />
  `;
}

function keep(key, canvas) {
  if (canvas && views.get(key)?.canvas !== canvas) views.set(key, new PoolView(canvas));
}

function show() {
  render(html`<${Stage} />`, stage);
  if (!state.player) return;
  const hasAllBranches = state.settings.share === 1;
  render(html`<${About} stream=${state.stream} figures=${state.player.figures} hasAllBranches=${hasAllBranches} />`, data);
}

function repaint() {
  palette = null;
  draw();
}

document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("is-over");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("is-over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("is-over");
  const [file] = event.dataTransfer.files;
  if (file) load("file", file);
});
new MutationObserver(repaint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(() => draw()).observe(stage);

showHeader();
stage.replaceChildren();
load("recorded");
