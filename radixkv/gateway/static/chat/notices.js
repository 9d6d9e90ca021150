// What is wrong, and what can be done about it.

import { html } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";
import { askForKey } from "../page.js";
import * as view from "./conversation/view.js";
import { leaveOutBeginning } from "./weaving/cutting.js";

export function Notices() {
  const notice = view.notice.value;
  return html`
    <div role="status">${view.isLost.value && html`<p class="notice">The server cannot be reached. Trying again.</p>`}</div>
    <div role="alert">
      ${notice &&
      html`<p class="notice danger">
        <span>${notice.text}</span>
        <span class="choices">
          ${notice.overflow && html`<button onClick=${() => leaveOutBeginning(notice.overflow.most)}>Leave out the beginning</button>`}
          ${notice.status === 401 && html`<button onClick=${enterKey}>Enter a key</button>`}
          <button class="bare icon-button" onClick=${() => (view.notice.value = null)} aria-label="Close"><${Icon} name="x" /></button>
        </span>
      </p>`}
    </div>
  `;
}

async function enterKey() {
  if (await askForKey()) location.reload(); // all that was refused is asked for again
}
