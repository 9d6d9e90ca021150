// Lines over time: one for each way, with where the replay stands now.

import { html } from "../vendor/htm-preact.js";
import { WAYS } from "./player.js";

const WIDTH = 320;
const HEIGHT = 96;
const NUM_POINTS = 160;

/**
 * `figure`: which of the figures of every step. `last`: what a way that has ended shows ("hold" its last value, or 0).
 * `format(value)` for people.
 */
export function Lines({ title, figure, figures, numSteps, step, format, keepsLast = false, most = 0 }) {
  const top = Math.max(most, 1e-9, ...WAYS.map(({ key }) => highest(figures[key][figure])));
  const now = WAYS.map(({ key, name }) => [key, name, at(figures[key][figure], step - 1, keepsLast)]);
  const told = now.map(([, name, value]) => `${name}: ${format(value)}`).join("; ");
  const x = numSteps ? (step / numSteps) * WIDTH : 0;
  return html`<figure class="lines">
    <figcaption>${title}<span class="soft numbers">up to ${format(top)}</span></figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${`${title} at this moment. ${told}`}>
      ${WAYS.map(
        ({ key }) => html`<path class="way ${key}" d=${pathOf(figures[key][figure], numSteps, top, keepsLast)} />`,
      )}
      <line class="now" x1=${x} x2=${x} y1="0" y2=${HEIGHT} />
    </svg>
    <ul class="now numbers">
      ${now.map(([key, name, value]) => html`<li class=${key}><span class="hidden-text">${name}: </span>${format(value)}</li>`)}
    </ul>
  </figure>`;
}

function highest(numbers) {
  return numbers.reduce((most, number) => Math.max(most, number), 0);
}

function at(numbers, step, keepsLast) {
  if (step < 0 || !numbers.length) return 0;
  return step < numbers.length ? numbers[step] : keepsLast ? numbers[numbers.length - 1] : 0;
}

const paths = new WeakMap();

/** An SVG path of means over equal stretches of time; made once for a row of numbers and a scale. */
function pathOf(numbers, numSteps, top, keepsLast) {
  const known = paths.get(numbers);
  if (known?.top === top && known.numSteps === numSteps) return known.path;
  const points = [];
  for (let index = 0; index < NUM_POINTS; index += 1) {
    const start = Math.floor((index * numSteps) / NUM_POINTS);
    const end = Math.max(start + 1, Math.floor(((index + 1) * numSteps) / NUM_POINTS));
    let sum = 0;
    for (let step = start; step < end; step += 1) sum += at(numbers, step, keepsLast);
    const y = HEIGHT - 2 - (sum / (end - start) / top) * (HEIGHT - 6);
    points.push(`${(((index + 0.5) * WIDTH) / NUM_POINTS).toFixed(1)} ${y.toFixed(1)}`);
  }
  const path = `M${points.join("L")}`;
  paths.set(numbers, { top, numSteps, path });
  return path;
}
