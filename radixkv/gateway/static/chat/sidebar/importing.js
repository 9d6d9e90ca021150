// Conversations of other programs, and of this page, from a file.

import { importBatch } from "../conversation/api.js";

const BATCH_BYTES = 2_000_000;
const MOST_REASONS = 3;

/** Send a file's conversations in pieces that the server takes; a sentence on what came of it. Throws what people should read. */
export async function importFile(file, onProgress) {
  const entries = readEntries(await file.text());
  if (!entries.length) return "This file holds no conversation.";
  let numDone = 0;
  let numImported = 0;
  let numKnown = 0;
  const skipped = []; // [number in the file, why]
  const leftOut = {};
  while (numDone < entries.length) {
    let end = numDone;
    for (let size = 0; end < entries.length && (end === numDone || size + entries[end].size < BATCH_BYTES); end++) size += entries[end].size;
    const batch = entries.slice(numDone, end).map((entry) => entry.value);
    try {
      const answer = await importBatch(batch);
      numImported += answer.conversations.length;
      numKnown += answer.known.length;
      for (const { indices, reason } of answer.skipped) skipped.push(...indices.map((index) => [numDone + index + 1, reason]));
      for (const [kind, number] of Object.entries(answer.left_out)) leftOut[kind] = (leftOut[kind] ?? 0) + number;
    } catch (error) {
      if (error.status !== 413) throw new Error(numImported ? `${numImported} imported, then: ${error.message}` : error.message, { cause: error });
      skipped.push(...batch.map((_, index) => [numDone + index + 1, error.message]));
    }
    numDone = end;
    onProgress(numDone, entries.length);
  }
  return [
    `${numImported} imported.`,
    numKnown && `${numKnown} here already; what was new in them was added.`,
    skipped.length && `${skipped.length} left out. ${reasons(skipped)}`,
    Object.keys(leftOut).length && `Not readable here: ${Object.entries(leftOut).map(([kind, number]) => `${kind} (${number})`).join(", ")}.`,
  ].filter(Boolean).join(" ");
}

/** Each reason once, with the first of the conversations that it holds for. */
function reasons(skipped) {
  const numbers = Map.groupBy(skipped, ([, reason]) => reason);
  return [...numbers].slice(0, MOST_REASONS).map(([reason, [[first], ...others]]) => `No. ${first}${others.length ? ` and ${others.length} more` : ""}: ${reason}`).join(" ");
}

function readEntries(text) {
  let values;
  try {
    const whole = JSON.parse(text);
    values = Array.isArray(whole) ? whole : [whole];
  } catch {
    try {
      values = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    } catch (error) {
      throw new Error("This file is no JSON. Of a ChatGPT export it is the file conversations.json within the archive.", { cause: error });
    }
  }
  return values.map((value) => ({ value, size: JSON.stringify(value).length }));
}
