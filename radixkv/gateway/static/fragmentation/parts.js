// The parts of the stage: the bar that plays, the conditions, a pool, the request that is followed.

import { html } from "../vendor/htm-preact.js";
import { CACHED, EXTERNAL, FREE, INTERNAL, RESERVED, SHARED, USED } from "./slots.js";

export const SPEEDS = [1, 2, 5, 10, 25, 100];

const KEY = [
  [USED, "used", "read by one request"],
  [SHARED, "shared", "read by several"],
  [CACHED, "cached", "kept for those to come"],
  [RESERVED, "reserved", "will be written"],
  [INTERNAL, "internal", "never written"],
  [EXTERNAL, "external", "too short a hole"],
  [FREE, "free", "holds nothing"],
];
const OF_WAY = {
  reserve: [USED, RESERVED, INTERNAL, EXTERNAL, FREE],
  paged: [USED, RESERVED, INTERNAL, FREE],
  sharing: [USED, SHARED, CACHED, RESERVED, INTERNAL, FREE],
};

export const count = (number) => Math.round(number).toLocaleString("en");
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;

/** A time in the stream, in seconds. */
export function seconds(steps, step_s) {
  const time_s = steps * step_s;
  return time_s < 100 ? `${time_s.toFixed(1)} s` : `${count(time_s)} s`;
}

export function PlayBar({ isPlaying, step, numSteps, step_s, speed, onToggle, onSeek, onSpeed }) {
  const clock = `${seconds(step, step_s)} of ${seconds(numSteps, step_s)}`;
  const hasEnded = step >= numSteps;
  return html`<div class="player" role="group" aria-label="Replay">
    <button class="main play" onClick=${onToggle}>${isPlaying ? "❚❚ Pause" : hasEnded ? "↺ Again" : "▶ Play"}</button>
    <div class="time">
      <input type="range" min="0" max=${numSteps} value=${step} aria-label="Moment" aria-valuetext=${clock}
        onInput=${(event) => onSeek(Number(event.target.value))} />
      <span class="clock numbers small">${clock}</span>
    </div>
    <label>Speed
      <select value=${String(speed)} onChange=${(event) => onSpeed(Number(event.target.value))}>
        ${SPEEDS.map((each) => html`<option value=${String(each)}>${each}×</option>`)}
      </select>
    </label>
  </div>`;
}

/** A slider over `choices`, numbers in rising order; `show(choice)` for people. */
export function Choice({ id, label, choices, value, show, onChange }) {
  return html`<div>
    <div class="named"><label for=${id}>${label}</label><output for=${id} class="numbers">${show(value)}</output></div>
    <input id=${id} type="range" min="0" max=${choices.length - 1} step="1" value=${nearest(choices, value)}
      aria-valuetext=${show(value)} onInput=${(event) => onChange(choices[Number(event.target.value)])} />
  </div>`;
}

function nearest(choices, value) {
  const distances = choices.map((choice) => Math.abs(choice - value));
  return distances.indexOf(Math.min(...distances));
}

/** What the slots of all pools look like, by what stands in them. */
export function Legend() {
  return html`<ul class="key legend" aria-label="What stands in a slot">
    ${KEY.map(([, kind, what]) => html`<li class=${kind}><i aria-hidden="true"></i><b>${kind}</b> ${what}</li>`)}
  </ul>`;
}

/** A pool: its picture is drawn by others. `counts`: slots by state. */
export function Pool({ way, counts, replay, onCanvas, onPoint, onChoose }) {
  const held = replay.memory.held;
  const rows = KEY.filter(([state]) => OF_WAY[way.key].includes(state));
  const told = rows.map(([state, kind]) => `${count(counts[state])} ${kind}`).join(", ");
  return html`<section class="pool ${way.key}" aria-labelledby=${`pool-${way.key}`}>
    <h2 id=${`pool-${way.key}`}>${way.name}</h2>
    <div class="headline">
      <b>${held ? Math.round((100 * replay.numTokens) / held) : "–"}</b>
      <span class="soft small">tokens at hand for every 100 slots held</span>
      <dl class="crowd">
        ${[["run", replay.running.length], ["wait", replay.waiting.length], ["done", replay.numFinished]].map(
          ([name, number]) => html`<div><dt>${name}</dt><dd>${count(number)}</dd></div>`,
        )}
      </dl>
    </div>
    <ul class="key" aria-label="Slots by what stands in them">
      ${rows.map(
        ([state, kind]) => html`<li class=${`${kind}${counts[state] ? "" : " none"}`}>
          <i aria-hidden="true"></i>${kind}<span class="count">${count(counts[state])}</span>
        </li>`,
      )}
    </ul>
    <canvas ref=${onCanvas} role="img" aria-label=${`Slots: ${told}`} onPointerMove=${onPoint} onPointerLeave=${onPoint}
      onClick=${onChoose}></canvas>
  </section>`;
}

/** The request that is brought out in all three pools, in words. */
export function Follow({ requests, chosen, shown, describe, onChoose }) {
  const change = (event) => {
    const number = Number(event.target.value);
    onChoose(Number.isInteger(number) && number >= 1 && number <= requests.length ? number - 1 : null);
  };
  return html`<div class="follow">
    <label for="follow">Follow request</label>
    <input id="follow" type="number" min="1" max=${requests.length} value=${chosen === null ? "" : chosen + 1}
      placeholder="1" onInput=${change} />
    ${chosen !== null && html`<button onClick=${() => onChoose(null)}>Show all</button>`}
    <p class=${shown === null ? "soft" : ""} aria-live=${shown === chosen ? "polite" : "off"}>
      ${shown === null ? "Point at a slot, or name a request: its tokens stand out in all three pools." : describe(requests[shown])}
    </p>
  </div>`;
}
