// A stream of requests: when each came, how long it was, and from which earlier one its prompt parts. Numbers, no text.
//
// Which token stands at a position is named by the request that brought it there first: two histories are the same up to where
// these names part. So histories can be compared though nobody knows their text.

export const MAX_REQUESTS = 2000;
export const MAX_TOKENS = 8_000_000;
export const MAX_LENGTH = 262_144;

const ROUND_TOKENS = 320; // of radixkv's worker
const MOONCAKE_ROUND_TOKENS = 8192; // of a server for prompts of its length
const MOONCAKE_BLOCK_TOKENS = 512;
const MOST_NAMED = 0x1_0000_0000;

/** What cannot be read; the message is for people. */
export class StreamError extends Error {}

/**
 * The stream in `text`: what `/v1/radixkv/replay` answers, JSON lines of `radixkv replay --shapes`, or Mooncake's JSON lines.
 * Past MAX_REQUESTS or MAX_TOKENS the rest is left out and counted.
 */
export function readStream(name, text) {
  const { rows, ...told } = parse(name, text);
  if (!rows.length) throw new StreamError(`${name} holds no request.`);
  const stream = { name, step_s: null, roundTokens: ROUND_TOKENS, longestReply: 0, madeOf: null, numLeftOut: 0, requests: [], ...told };
  let numTokens = 0;
  for (const [index, row] of rows.entries()) {
    check(name, index, row, stream.requests);
    numTokens += row.prompt + row.generated;
    if (index === MAX_REQUESTS || (index && numTokens > MAX_TOKENS)) {
      stream.numLeftOut = rows.length - index;
      break;
    }
    stream.requests.push(row);
    stream.longestReply = Math.max(stream.longestReply, row.generated, row.asked ?? 0);
  }
  return stream;
}

function parse(name, text) {
  const whole = asJson(text);
  if (whole && Array.isArray(whole.requests)) {
    return { rows: whole.requests.map(ofShape), step_s: whole.step_s || null, madeOf: whole.made ?? null };
  }
  const lines = text.split("\n").filter((line) => line.trim());
  const items = lines.map((line, index) => {
    const item = asJson(line);
    if (!item || typeof item !== "object") throw new StreamError(`${name}, request ${index + 1}: this is no JSON object.`);
    return item;
  });
  if (!items.length || !items[0].hash_ids) return { rows: items.map(ofShape) };
  return { rows: ofMooncake(name, items), roundTokens: MOONCAKE_ROUND_TOKENS };
}

function asJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function ofShape(item) {
  return {
    arrival_s: item.arrival_s,
    prompt: item.prompt_tokens,
    generated: item.generated_tokens,
    parent: item.parent ?? null,
    shared: item.shared_tokens,
    asked: item.max_tokens ?? null,
    found: item.found_tokens ?? null,
  };
}

/** Mooncake tells a prefix by the ids of its blocks of 512 tokens: the earlier request that shares most of them is the parent. */
function ofMooncake(name, items) {
  const root = { below: new Map(), request: null };
  return items.map((item, index) => {
    const ids = item.hash_ids;
    if (!Array.isArray(ids)) throw new StreamError(`${name}, request ${index + 1}: hash_ids is no list.`);
    let node = root;
    let numShared = 0;
    let parent = null;
    for (const [place, id] of ids.entries()) {
      let next = node.below.get(id);
      if (!next) node.below.set(id, (next = { below: new Map(), request: index }));
      else if (numShared === place && next.request !== index) {
        numShared += 1;
        parent = next.request;
      }
      node = next;
    }
    const longest = parent === null ? 0 : Math.min(item.input_length, items[parent].input_length);
    const shared = Math.min(numShared * MOONCAKE_BLOCK_TOKENS, longest);
    const told = { arrival_s: item.timestamp / 1000, prompt: item.input_length, generated: item.output_length ?? 0 };
    return { ...told, parent, shared, asked: null, found: null };
  });
}

function check(name, index, row, before) {
  const fail = (what) => {
    throw new StreamError(`${name}, request ${index + 1}: ${what}.`);
  };
  const isCount = (value) => Number.isInteger(value) && value >= 0;
  if (!Number.isFinite(row.arrival_s)) fail("it does not say when it came");
  if (index && row.arrival_s < before[index - 1].arrival_s) fail("it came before the one above it");
  if (!isCount(row.prompt) || row.prompt < 1) fail("its prompt has no length");
  if (!isCount(row.generated)) fail("its reply has no length");
  if (row.prompt + row.generated > MAX_LENGTH) fail(`it is longer than ${MAX_LENGTH.toLocaleString("en")} tokens`);
  if (row.parent === null) row.shared = 0;
  else if (!isCount(row.parent) || row.parent >= index) fail("its parent is no earlier request");
  const parent = row.parent === null ? null : before[row.parent];
  if (!isCount(row.shared) || (parent && row.shared > Math.min(row.prompt, parent.prompt + parent.generated))) {
    fail("it shares more than there is");
  }
}

/**
 * The requests as they are played. `rate` makes them come so many times as fast; of those that branch off an earlier one only
 * `share` still do, the others bring as many tokens of their own.
 *
 * Each: index, arrival (step), prompt, generated, length, history (who brought each token first).
 */
export function requestsOf(stream, { step_s, rate, share }) {
  const requests = [];
  const start_s = stream.requests[0].arrival_s;
  for (const [index, row] of stream.requests.entries()) {
    const parent = row.parent !== null && place(index) < share ? requests[row.parent] : null;
    const shared = parent ? row.shared : 0;
    const history = new Uint32Array(row.prompt + row.generated).fill(index);
    if (parent) history.set(parent.history.subarray(0, shared));
    requests.push({
      index,
      arrival: Math.floor((row.arrival_s - start_s) / step_s / rate),
      prompt: row.prompt,
      generated: row.generated,
      length: history.length,
      parent: parent ? parent.index : null,
      shared,
      history,
    });
  }
  return requests;
}

/** Spread evenly over 0 to 1, the same for an index whatever the share: who branches at a half does at three quarters too. */
function place(index) {
  return (Math.imul(index + 1, 0x9e3779b1) >>> 0) / MOST_NAMED;
}

/** How far two histories are the same, of positions from `start` to `end`. */
export function commonLength(one, other, start, end) {
  const last = Math.min(end, one.length, other.length);
  let position = start;
  while (position < last && one[position] === other[position]) position += 1;
  return position;
}
