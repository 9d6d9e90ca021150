// What was thrown away: the last of it may come back at once, all of it from a list.

import { html } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { Icon } from "../../icons.js";
import { count } from "../../words.js";
import { attempt } from "../actions.js";
import * as api from "../api.js";
import { excerpt } from "../conversation.js";
import * as view from "../view.js";
import { bringBack, pruned, undo } from "./actions.js";

/** Says what has just been thrown away, as long as its conversation is open. */
export function Pruned() {
  const last = pruned.value;
  const isHere = last && last.owner === view.followed.value;
  return html`<div role="status">
    ${isHere &&
    html`<p class="notice pruned">
      <span>${count(last.num, "message")} thrown away: “${last.text}”</span>
      <span class="choices">
        <button onClick=${undo}>Undo</button>
        <button class="bare icon-button" aria-label="Close" onClick=${() => (pruned.value = null)}><${Icon} name="x" /></button>
      </span>
    </p>`}
  </div>`;
}

/** Show the branches that were thrown away, each with a way back. */
export const openTrash = () =>
  attempt(async () => {
    const owner = view.followed.peek();
    const { branches } = await api.thrown(owner);
    const id = await ask("trash-title", (close) => html`
      <h2 id="trash-title">Thrown away</h2>
      <p class="soft">They are kept for 30 days.</p>
      <ul class="thrown">
        ${branches.map(({ message, num_messages }) => html`<li>
          <span>${message.name || excerpt(message.text, 60)}</span><span class="soft small numbers">${count(num_messages, "message")}</span>
          <button onClick=${() => close(message.id)}>Bring back</button>
        </li>`)}
      </ul>
      ${!branches.length && html`<p>No branch of this conversation was thrown away.</p>`}
      <button autofocus onClick=${() => close()}>Close</button>
    `);
    if (id) await bringBack(owner, id);
  });
