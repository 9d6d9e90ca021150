// The branches of a conversation that were thrown away: each comes back, or goes for good.

import { html } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { count } from "../../words.js";
import { attempt } from "../conversation/actions.js";
import * as api from "../conversation/api.js";
import { excerpt } from "../conversation/conversation.js";
import * as view from "../conversation/view.js";
import { bringBack, deleteForGood } from "./actions.js";

/** Show the branches that were thrown away, each with a way back. */
export const openTrash = () =>
  attempt(async () => {
    const owner = view.followed.peek();
    const { branches } = await api.thrown(owner);
    await ask("trash-title", (close) => html`
      <h2 id="trash-title">Thrown away</h2>
      <p class="soft">They are kept for 30 days.</p>
      <ul class="thrown">
        ${branches.map((branch) => html`<li>
          <span>${branch.message.name || excerpt(branch.message.text, 60)}</span><span class="soft small numbers">${count(branch.num_messages, "message")}</span>
          <button onClick=${() => close(bringBack(owner, branch.message.id))}>Bring back</button>
          <button class="danger" onClick=${() => close(deleteForGood(owner, branch).then(openTrash))}>Delete for good</button>
        </li>`)}
      </ul>
      ${!branches.length && html`<p>No branch of this conversation was thrown away.</p>`}
      <button autofocus onClick=${() => close()}>Close</button>
    `);
  });
