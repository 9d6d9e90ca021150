// What came of a whole replay: a table, sentences, and what the data are.

import { html } from "../vendor/htm-preact.js";
import { count, percent, seconds } from "./parts.js";
import { WAYS } from "./player.js";

export function Outcome({ figures, step_s, numRequests }) {
  const rows = WAYS.map((way) => [way, figures[way.key]]);
  const hasPreempted = rows.some(([, own]) => own.numPreempted);
  return html`<div class="outcome" role="region" aria-label="The whole replay" tabindex="0">
    <table>
      <caption>All ${count(numRequests)} requests, under the conditions above</caption>
      <thead>
        <tr>
          <th scope="col">way</th>
          <th scope="col">tokens for 100 slots held</th>
          <th scope="col">requests at once, mean</th>
          <th scope="col">at most</th>
          <th scope="col">prompt tokens found</th>
          <th scope="col">tokens computed</th>
          ${hasPreempted && html`<th scope="col">times one gave way</th>`}
          <th scope="col">all done after</th>
        </tr>
      </thead>
      <tbody class="numbers">
        ${rows.map(
          ([way, own]) => html`<tr>
            <th scope="row">${way.name}</th>
            <td>${(100 * own.tokensPerSlot).toFixed(0)}</td>
            <td>${own.meanRunning.toFixed(1)}</td>
            <td>${count(own.mostRunning)}</td>
            <td>${percent(own.numFoundTokens / Math.max(1, own.numPromptTokens))}</td>
            <td>${count(own.numComputedTokens)}</td>
            ${hasPreempted && html`<td>${count(own.numPreempted)}</td>`}
            <td>${seconds(own.numSteps, step_s)}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** Sentences on what one sees, from the figures. */
export function Sentences({ figures, settings }) {
  const { reserve, paged, sharing } = figures;
  const of100 = (own) => (100 * own.tokensPerSlot).toFixed(0);
  const once = sharing.numComputedTokens / Math.max(1, paged.numComputedTokens);
  const serves = sharing.tokensPerSlot > 1;
  return html`<p>
      Reserving ${count(settings.reply)} tokens for every reply keeps ${of100(reserve)} tokens in 100 slots; what is left over is
      set aside for replies that end earlier. In blocks of ${count(settings.blockSize)} it is ${of100(paged)}, and on average${" "}
      ${paged.meanRunning.toFixed(1)} requests run at once in place of ${reserve.meanRunning.toFixed(1)}.
    </p>
    <p>
      With shared prefixes ${percent(sharing.numFoundTokens / Math.max(1, sharing.numPromptTokens))} of all prompt tokens are
      there already, so ${percent(once)} of the tokens are computed that paging alone computes.
      ${serves
        ? ` 100 slots serve ${of100(sharing)} tokens: more than there are slots, since one that several read counts for each of them.`
        : ` 100 slots serve ${of100(sharing)} tokens.`}
    </p>`;
}

/** Where the requests come from, and how they were made. */
export function About({ stream, figures, hasAllBranches }) {
  const known = stream.requests.filter((row) => row.found !== null);
  const total = (rows, pick) => rows.reduce((sum, row) => sum + pick(row), 0);
  const found = total(known, (row) => row.found) / Math.max(1, total(known, (row) => row.prompt));
  const numBranching = stream.requests.filter((row) => row.parent !== null).length;
  const prompts = total(stream.requests, (row) => row.prompt);
  const replies = total(stream.requests, (row) => row.generated);
  return html`<h2>The data</h2>
    <p>
      <strong>${stream.name}.</strong> ${count(stream.requests.length)} requests with ${count(prompts)} tokens of prompts
      and ${count(replies)} of replies; ${count(numBranching)} begin as an earlier one does. Lengths and times alone, no text.
      ${stream.numLeftOut > 0 && ` Of the rest, ${count(stream.numLeftOut)} requests, nothing is shown: it would be too much for a page.`}
      ${stream.step_s
        ? ` A step took ${(1000 * stream.step_s).toFixed(1)} ms, the mean time between two tokens of a reply in that run.`
        : " How long a step took is not told: 50 ms are assumed, which sets how fast requests come beside how fast they are served."}
      ${` It computes ${count(stream.roundTokens)} tokens of prompts at most.`}
    </p>
    ${stream.madeOf && html`<p>${stream.madeOf}</p>`}
    ${known.length > 0 &&
    html`<p>
      When radixkv served these requests itself, it found ${percent(found)} of their prompt tokens in its cache.
      ${hasAllBranches &&
      ` The tree of this page finds ${percent(figures.sharing.numFoundTokens / Math.max(1, figures.sharing.numPromptTokens))} in the pool above.`}
    </p>`}
    <p>
      Other data: this server's own last requests, if it has answered any for you, or a file of yours, dropped on this page: a trace in
      the format of <a href="https://github.com/kvcache-ai/Mooncake">Mooncake</a>, or what
      ${" "}<code>radixkv replay TRACE --shapes FILE</code> writes. A file stays in this browser.
    </p>`;
}
