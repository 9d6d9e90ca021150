// The scene of a full card: requests that begin alike, and how many of them a card holds by each of the three ways.

import { html } from "../vendor/htm-preact.js";
import { count } from "./parts.js";
import { WAYS } from "./player.js";
import { readStream } from "./stream.js";

/**
 * An 80 GB card, nine tenths of it taken, beside Llama 3 70B in 4 bits: what `radixkv plan llama-3-70b --memory 80GB --dtype int4`
 * leaves for KV. Each request has a prompt whose beginning they share, and a reply shorter than the model allows.
 */
export const SCENE = {
  name: "An 80 GB card, a 70B model, 25 requests that begin alike",
  numSlots: 78_288,
  tokenBytes: 327_680,
  numRequests: 25,
  shared: 1024,
  prompt: 3072,
  generated: 1024,
  longest: 8192,
  roundTokens: 8192,
};

const GIB = 2 ** 30;

/** The scene as a stream of requests; they come at once. */
export function sceneStream() {
  const { name, numRequests, shared, prompt, generated, longest, numSlots, roundTokens } = SCENE;
  const requests = Array.from({ length: numRequests }, (_, index) => ({
    arrival_s: 0,
    prompt_tokens: prompt,
    generated_tokens: generated,
    max_tokens: longest - prompt,
    parent: index ? 0 : null,
    shared_tokens: index ? shared : 0,
  }));
  const made = `Made for this page: Llama 3 70B in 4 bits on a card of 80 GB leaves 23.9 GiB for KV, of which a token takes 320 KiB.`;
  return { ...readStream(name, JSON.stringify({ requests, made })), numSlots, roundTokens, isScene: true };
}

/**
 * Of each way: the slots of one more request, those taken once for all, how many are served at once and how many are refused, and
 * the slots that the served ones take.
 */
export function served({ numSlots, blockSize, reply }) {
  const { numRequests, shared, prompt, generated } = SCENE;
  const inBlocks = (tokens) => Math.ceil(tokens / blockSize) * blockSize;
  const common = Math.floor(shared / blockSize) * blockSize; // of a block in which histories part each has its copy
  const each = { reserve: prompt + reply, paged: inBlocks(prompt + generated), sharing: inBlocks(prompt + generated) - common };
  return WAYS.map(({ key, name }) => {
    const once = key === "sharing" ? common : 0;
    const numServed = Math.max(0, Math.min(numRequests, Math.floor((numSlots - once) / each[key])));
    return { key, name, each: each[key], once, numServed, numRefused: numRequests - numServed, taken: once + numServed * each[key] };
  });
}

export function SceneTable({ settings }) {
  const bytes = (slots) => `${((slots * SCENE.tokenBytes) / GIB).toFixed(2)} GiB`;
  const { numRequests, prompt, generated, shared } = SCENE;
  return html`<div class="outcome scene" role="region" aria-label="The card" tabindex="0">
    <table>
      <caption>
        ${count(numRequests)} requests of ${count(prompt + generated)} tokens each, of which ${count(shared)} are the same, in${" "}
        ${bytes(settings.numSlots)}
      </caption>
      <thead>
        <tr>
          <th scope="col">way</th>
          <th scope="col">one more request takes</th>
          <th scope="col">once for all</th>
          <th scope="col">served at once</th>
          <th scope="col">refused</th>
          <th scope="col">the served ones take</th>
        </tr>
      </thead>
      <tbody class="numbers">
        ${served(settings).map(
          (own) => html`<tr>
            <th scope="row">${own.name}</th>
            <td>${bytes(own.each)}</td>
            <td>${own.once ? bytes(own.once) : "0"}</td>
            <td>${count(own.numServed)}</td>
            <td>${count(own.numRefused)}</td>
            <td>${bytes(own.taken)}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
