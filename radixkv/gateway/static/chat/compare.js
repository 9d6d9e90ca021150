// Branches side by side: what they share above, once, and each one's own part in a column.

import { html } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";
import { stop } from "./actions.js";
import { excerpt } from "./conversation.js";
import { Markdown } from "./markdown.js";
import { costs } from "./message.js";
import { compared, conversation, endCompare } from "./view.js";

/** The last message that the branches down to `tips` share, or null. */
export function shared(tree, tips) {
  const paths = tips.map((tip) => tree.lineage(tip));
  let last = null;
  for (let level = 0; paths.every((path) => path[level] && path[level].id === paths[0][level].id); level++) last = paths[0][level];
  return last;
}

/** Columns for the branches that are compared. */
export function Compare() {
  const shown = conversation.value;
  const tips = compared.value ?? [];
  if (!shown?.shape.value || !tips.length) return null;
  const above = shared(shown, tips);
  const level = above ? shown.lineage(above.id).length : 0;
  return html`
    <section class="compare" aria-label="Branches side by side">
      <div class="compare-head">
        <h2>${tips.length} branches side by side</h2>
        <button onClick=${() => endCompare()}>Back to the conversation</button>
      </div>
      ${above && html`<p class="shared-part soft">All go on from: “${excerpt(above.text, 200)}”</p>`}
      <div class="columns">
        ${tips.map((tip, index) => {
          const cells = shown.lineage(tip).slice(level).map((message) => shown.cell(message.id));
          return html`<${Column} key=${tip} number=${index + 1} cells=${cells} onKeep=${() => endCompare(tip)} />`;
        })}
      </div>
    </section>
  `;
}

function Column({ number, cells, onKeep }) {
  const own = cells.map((cell) => cell.value);
  const last = own.at(-1);
  return html`
    <div class="column" role="group" aria-label=${`Branch ${number}`}>
      <p class="soft small column-number" aria-hidden="true">${number}</p>
      <div class="column-body" tabindex="0" role="region" aria-label=${`Text of branch ${number}`}>
        ${own.map((message) =>
          message.role === "assistant"
            ? html`<div class="said"><${Markdown} text=${message.text} />
                ${message.status === "failed" && html`<p class="notice danger">${message.error ?? "This reply broke off."}</p>`}
                <p class="soft small numbers">${message.status === "running" ? "writing" : costs(message.details).join(" · ")}</p></div>`
            : html`<div class="plain own" dir="auto">${excerpt(message.text, 2000)}</div>`,
        )}
        ${!own.length && html`<p class="soft">Nothing of its own: the others go on from its end.</p>`}
      </div>
      <div class="column-foot">
        <button class="keep" onClick=${onKeep}>Go on with this one</button>
        ${last?.status === "running" && html`<button onClick=${() => stop(last)}><${Icon} name="square" />Stop</button>`}
      </div>
    </div>
  `;
}
