// The page on fragmentation: one stream of requests through three pools, played over time under conditions that the reader sets.

import { showHeader } from "../page.js";
import { effect, html, render, signal } from "../vendor/htm-preact.js";
import { Lines } from "./lines.js";
import { About, Outcome, Sentences } from "./outcome.js";
import { Choice, Follow, Legend, PlayBar, Pool, count, percent } from "./parts.js";
import { WAYS } from "./player.js";
import { PoolView, palette } from "./pool_view.js";
import { SceneTable } from "./scene.js";
import * as state from "./state.js";

const BLOCK_SIZES = [1, 2, 4, 8, 16, 32, 64, 128];
const RATES = [0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 10];
const SHARES = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];

const { chosen, pointed, player, settings, slots, stream } = state;
const stage = document.querySelector("#stage");
const views = new Map();
const room = signal(0); // changes with the place that the pools have

// -- drawing

function draw() {
  room.value;
  state.step.value;
  const { replays, settings: own } = player.value ?? { replays: [] };
  const followed = pointed.value ?? chosen.value;
  for (const [place, replay] of replays.entries()) {
    const { key } = WAYS[place];
    views.get(key)?.draw(slots.value[place], {
      blockSize: key === "reserve" ? 0 : own.blockSize,
      palette: palette.value,
      followed: followed === null ? null : slotsOf(replay, slots.value[place], followed),
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

function keep(key, canvas) {
  if (canvas && views.get(key)?.canvas !== canvas) views.set(key, new PoolView(canvas));
}

// -- following one request

function point(place, event) {
  const own = slots.value[place];
  const slot = event.type === "pointerleave" ? null : views.get(WAYS[place].key).slotAt(event, own.states.length);
  pointed.value = slot === null ? null : own.ownerOf(slot);
}

function describe(request) {
  const whereabouts = WAYS.map((way, place) => `${way.name.toLowerCase()}: ${whereabout(player.value.replays[place], request)}`);
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
  const notice = state.notice.value;
  if (!stream.value) {
    return notice ? html`<p class="words notice danger" role="alert">${notice}</p>` : html`<p class="soft">The requests are being read.</p>`;
  }
  return html`
    ${notice && html`<p class="notice" role="alert">${notice}</p>`}
    <${Conditions} read=${stream.value} settings=${settings.value} />
    ${stream.value.isScene && html`<${SceneTable} settings=${settings.value} />`}
    ${player.value ? html`<${Replayed} player=${player.value} />` : html`<p class="soft">The stream is being played once to its end.</p>`}
  `;
}

function Conditions({ read, settings: own }) {
  const asked = async ({ target }) => {
    await state.load(target.value);
    target.value = state.source.value; // where there was nothing to load, it is what it was
  };
  const picked = (event) => event.target.files.length && state.load("file", event.target.files[0]);
  const inSlots = (number) => `${count(number)} slots`;
  /** @type {[string, string, any[], (value: number) => string][]} */
  const conditions = [
    ["numSlots", "Pool", state.poolSizes(read, own.reply), inSlots],
    ["blockSize", "Block", BLOCK_SIZES, inSlots],
    ["reply", "Reply reserved", state.replies(read), inSlots],
    ["rate", "Requests come", RATES, (rate) => `${rate}× as fast`],
    ["share", "Branches kept", SHARES, percent],
  ];
  return html`<div class="source">
    <label for="source">Requests</label>
    <select id="source" value=${state.source.value} onChange=${asked}>
      ${Object.entries(state.SOURCES).map(([key, { name }]) => html`<option value=${key}>${name}</option>`)}
      ${state.source.value === "file" && html`<option value="file">${read.name}</option>`}
    </select>
    <button onClick=${() => document.getElementById("file").click()}>A file…</button>
    <input id="file" type="file" accept=".json,.jsonl" hidden aria-label="A file of requests" onChange=${picked} />
    <button onClick=${state.reset}>Reset</button>
    <details class="conditions">
      <summary>Conditions</summary>
      <div class="sliders">
        ${conditions.map(
          ([key, label, choices, show]) => html`<${Choice} id=${key} ...${{ label, choices, show }} value=${own[key]}
            onChange=${(value) => state.set({ [key]: value })} />`,
        )}
      </div>
    </details>
  </div>`;
}

function Replayed({ player: { figures, numSteps, replays, requests, settings: measured } }) {
  const [step, step_s] = [state.shown.value, state.step_s()];
  const lines = { figures, numSteps, step, format: count };
  return html`
    <${PlayBar} isPlaying=${state.isPlaying.value} speed=${state.speed.value} ...${{ step, numSteps, step_s }}
      onToggle=${state.toggle} onSeek=${state.seek} onSpeed=${(speed) => (state.speed.value = speed)} />
    <${Legend} />
    <div class="pools">
      ${WAYS.map(
        (way, place) => html`<${Pool} key=${way.key} way=${way} counts=${slots.value[place].counts} replay=${replays[place]}
          onCanvas=${(canvas) => keep(way.key, canvas)} onPoint=${(event) => point(place, event)}
          onChoose=${() => (chosen.value = pointed.value)} />`,
      )}
    </div>
    <${Follow} requests=${requests} chosen=${chosen.value} shown=${pointed.value ?? chosen.value} describe=${describe}
      onChoose=${(index) => (chosen.value = index)} />
    <div class="charts">
      <${Lines} ...${lines} title="Tokens at hand" figure="tokens" />
      <${Lines} ...${lines} title="Requests that run" figure="running" />
      <${Lines} ...${lines} title="Requests that wait" figure="waiting" />
      <${Lines} ...${lines} title="Prompt tokens found" figure="hitRate" format=${percent} keepsLast=${true} most=${1} />
    </div>
    <div class="words">
      <h2>What one sees</h2>
      <${Sentences} figures=${figures} settings=${measured} />
    </div>
    <${Outcome} figures=${figures} step_s=${step_s} numRequests=${requests.length} />
  `;
}

function Data() {
  if (!player.value) return null;
  return html`<${About} stream=${stream.value} figures=${player.value.figures} hasAllBranches=${settings.value.share === 1} />`;
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
  if (file) state.load("file", file);
});
new ResizeObserver(() => (room.value += 1)).observe(stage);

showHeader();
stage.replaceChildren();
render(html`<${Stage} />`, stage);
render(html`<${Data} />`, document.querySelector("#data"));
effect(draw);
state.load("recorded");
