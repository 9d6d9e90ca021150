// The messages that a search has found in a conversation, each a link to its place on its branch.

import { html } from "../../vendor/htm-preact.js";

/** `hits`: as the server tells them; `id`: the conversation's; `hasMore`: it has told the newest alone. */
export function Hits({ id, hits, hasMore, onOpen }) {
  return html`
    <div class="hits" role="group" aria-label="Messages that hold it">
      ${hits.map(
        ({ message, excerpt, marks }) =>
          html`<a key=${message} class="small" href=${`#${id}/${message}`} onClick=${onOpen}><span>${marked(excerpt, marks)}</span></a>`,
      )}
      ${hasMore && html`<span class="small soft">and older ones</span>`}
    </div>
  `;
}

/** `marks` count characters, of which some are two units of a text here. */
function marked(excerpt, marks) {
  const characters = [...excerpt];
  const parts = [];
  let end = 0;
  for (const [from, to] of marks) {
    parts.push(characters.slice(end, from).join(""), html`<mark>${characters.slice(from, to).join("")}</mark>`);
    end = to;
  }
  return [...parts, characters.slice(end).join("")];
}
