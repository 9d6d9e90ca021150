// The pool over the last ten minutes: small charts, each with its meaning in words.

import { html, signal } from "../vendor/htm-preact.js";
import { count, percent, span } from "./words.js";

const NUM_KEPT = 600;
const BUCKET_S = 10;
const WIDTH = 200;
const HEIGHT = 36;
const LONGEST = 10_000_000;
/** Tokens of a request, prompt and reply, of which the pool's card tells how many more fit. */
const roomTokens = signal(1024);

/** Points as they come, oldest first. */
export class Gauges {
  points = [];
  turn = signal(0);

  add({ fields, points }) {
    for (const point of points) this.points.push(Object.fromEntries(fields.map((name, index) => [name, point[index]])));
    this.points.splice(0, this.points.length - NUM_KEPT);
    this.turn.value += 1;
  }

  clear() {
    this.points = [];
    this.turn.value += 1;
  }

  get latest() {
    return this.points[this.points.length - 1];
  }

  /** How much two counters have risen in each ten seconds, `null` where nothing was read. */
  rises(...names) {
    const { points, latest } = this;
    if (!latest) return [];
    const buckets = new Map();
    for (let index = 1; index < points.length; index++) {
      const [before, now] = [points[index - 1], points[index]];
      if (names.some((name) => now[name] < before[name])) continue; // a new life of the pool counts from 0
      const bucket = Math.floor(now.time_s / BUCKET_S);
      const sums = buckets.get(bucket) ?? names.map(() => 0);
      buckets.set(bucket, sums.map((sum, each) => sum + now[names[each]] - before[names[each]]));
    }
    const last = Math.floor(latest.time_s / BUCKET_S);
    const length = NUM_KEPT / BUCKET_S;
    return Array.from({ length }, (_, index) => buckets.get(last - length + 1 + index) ?? null);
  }
}

/** All cards. */
export function GaugeCards({ gauges }) {
  gauges.turn.value;
  const { latest } = gauges;
  if (!latest) return html`<p class="soft cards-empty">Waiting for the first figures of the pool…</p>`;
  return html`<${PoolCard} latest=${latest} /><${HitCard} gauges=${gauges} /><${EvictionCard} gauges=${gauges} />
    <${SavedCard} latest=${latest} />`;
}

/** Requests of so many tokens that have blocks now, with nothing of them in the cache. */
export function numMore(latest, tokens) {
  const available = latest.num_free_blocks + latest.num_evictable_blocks - (latest.num_promised_blocks ?? 0);
  return Math.floor(Math.max(0, available) / Math.max(1, Math.ceil(tokens / latest.block_size)));
}

function Room({ latest }) {
  const changed = ({ target }) => {
    const tokens = Math.round(Number(target.value));
    if (tokens >= 1 && tokens <= LONGEST) roomTokens.value = tokens;
    else target.value = roomTokens.value;
  };
  const number = numMore(latest, roomTokens.value);
  const title = "Prompt and reply, with nothing of them in the cache; cached blocks that nobody reads count as free";
  return html`<p class="room small numbers" title=${title}>
    <span><strong>${number.toLocaleString("en")}</strong> more ${number === 1 ? "request fits" : "requests fit"} now</span>${" "}
    <label>of <input type="number" min="1" max=${LONGEST} value=${roomTokens.value} onChange=${changed} /> tokens</label>
  </p>`;
}

function PoolCard({ latest }) {
  const inUse = latest.num_blocks - latest.num_free_blocks - latest.num_evictable_blocks;
  const pinned = Math.min(latest.num_pinned_blocks, inUse);
  const parts = [
    ["in-use", "in use", inUse - pinned],
    ["pinned", "pinned", pinned],
    ["evictable", "cached, evictable", latest.num_evictable_blocks],
    ["free", "free", latest.num_free_blocks],
  ];
  const tiers = [[latest.num_host_blocks, "in host memory"], [latest.num_disk_blocks, "on disk"]];
  const below = tiers.filter(([blocks]) => blocks).map(([blocks, where]) => `${count(blocks, "block")} ${where}`);
  const words = parts.map(([, name, blocks]) => `${blocks.toLocaleString("en")} ${name}`).join(", ");
  const used = 1 - latest.num_free_blocks / latest.num_blocks;
  let x = 0;
  const bars = parts.map(([name, , blocks]) => {
    const width = (blocks / latest.num_blocks) * WIDTH;
    x += width;
    return html`<rect class=${`bar-${name}`} x=${x - width} y="8" width=${width} height="20" />`;
  });
  const label = `Of ${count(latest.num_blocks, "block")} of ${latest.block_size} tokens: ${words}.`;
  return html`<section class="card" aria-labelledby="card-pool">
    <h2 id="card-pool">Pool</h2>
    <p class="figure numbers">${percent(used)} <span class="soft small">filled</span></p>
    <${Chart} label=${label}>${bars}<//>
    <${Room} latest=${latest} />
    <ul class="keys small soft" aria-hidden="true">
      ${parts.map(([name, told]) => html`<li><i class=${`bar-${name}`}></i>${told.replace("cached, ", "")}</li>`)}
    </ul>
    ${below.length > 0 && html`<p class="small soft numbers">below it ${below.join(", ")}</p>`}
  </section>`;
}

function HitCard({ gauges }) {
  const rises = gauges.rises("num_hit_tokens", "num_query_tokens");
  const shares = rises.map((rise) => (rise && rise[1] ? rise[0] / rise[1] : null));
  const known = shares.filter((share) => share !== null);
  const { latest } = gauges;
  const total = latest.num_query_tokens ? latest.num_hit_tokens / latest.num_query_tokens : null;
  const now = known.length ? percent(known[known.length - 1]) : "–";
  const label = known.length
    ? `Hit rate over the last ten minutes: from ${percent(Math.min(...known))} to ${percent(Math.max(...known))}, lately ${now}.`
    : "Hit rate: nothing was asked for in the last ten minutes.";
  return html`<section class="card" aria-labelledby="card-hits">
    <h2 id="card-hits">Hit rate</h2>
    <p class="figure numbers">${now} <span class="soft small">of prompt tokens, lately</span></p>
    <${Chart} label=${label}><path class="line" d=${lineOf(shares)} /><//>
    <p class="small soft numbers">${total === null ? "nothing asked for yet" : `${percent(total)} since the pool began`}</p>
  </section>`;
}

function EvictionCard({ gauges }) {
  const rises = gauges.rises("num_evicted_blocks").map((rise) => rise && rise[0]);
  const most = Math.max(1, ...rises.map((rise) => rise ?? 0));
  const sum = rises.reduce((total, rise) => total + (rise ?? 0), 0);
  const step = WIDTH / rises.length;
  const bars = rises.map((rise, index) => {
    const height = rise ? Math.max(2, (rise / most) * HEIGHT) : 0;
    return html`<rect class="bar-evicted" x=${index * step} y=${HEIGHT - height} width=${step - 0.8} height=${height} />`;
  });
  const label = `Blocks evicted in each ten seconds of the last ten minutes: ${count(sum, "block")}, at most ${most} at once.`;
  return html`<section class="card" aria-labelledby="card-evictions">
    <h2 id="card-evictions">Evictions</h2>
    <p class="figure numbers">${sum.toLocaleString("en")} <span class="soft small">blocks in ten minutes</span></p>
    <${Chart} label=${sum ? label : "Nothing was evicted in the last ten minutes."}>${bars}<//>
    <p class="small soft numbers">${gauges.latest.num_evicted_blocks.toLocaleString("en")} since the pool began</p>
  </section>`;
}

function SavedCard({ latest }) {
  const speed = latest.prefill_tokens_per_s;
  const saved_s = speed ? latest.num_hit_tokens / speed : null;
  const how = speed
    ? `Tokens of prompts that were found in the cache since the pool began, over the speed at which this worker has computed
      prompts: ${Math.round(speed).toLocaleString("en")} tokens per second.`
    : "Tokens of prompts that were found in the cache since the pool began; seconds, once the worker has computed a prompt.";
  return html`<section class="card" aria-labelledby="card-saved">
    <h2 id="card-saved">Saved</h2>
    <p class="figure numbers">${short(latest.num_hit_tokens)} <span class="soft small">tokens not computed</span></p>
    <p class="figure numbers">${saved_s === null ? "–" : span(saved_s)} <span class="soft small">of computing</span></p>
    <details class="small soft"><summary title=${how.replaceAll(/\s+/g, " ")}>How this is computed</summary>${how}</details>
  </section>`;
}

function Chart({ label, children }) {
  return html`<svg class="chart" role="img" aria-label=${label} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
    <title>${label}</title><path class="base" d=${`M0 ${HEIGHT}H${WIDTH}`} />${children}
  </svg>`;
}

/** A line through shares from 0 to 1, joined where there is none between; one alone is a dash. */
function lineOf(shares) {
  const points = shares.flatMap((share, index) => (share === null ? [] : [`${xOf(index, shares.length)} ${yOf(share)}`]));
  return points.length === 1 ? `M${points[0]}h2` : points.length ? `M${points.join("L")}` : "";
}

function xOf(index, length) {
  return ((index + 0.5) / length) * WIDTH;
}

function yOf(share) {
  return 2 + (1 - share) * (HEIGHT - 4);
}

function short(number) {
  return number < 100_000 ? number.toLocaleString("en") : Intl.NumberFormat("en", { notation: "compact" }).format(number);
}
