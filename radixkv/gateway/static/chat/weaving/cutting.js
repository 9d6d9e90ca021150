// A branch that fills what the model can read goes on without its beginning, as a new branch.

import { Component, html } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { excerpt } from "../conversation/conversation.js";
import { tokensOf } from "../conversation/counting.js";
import * as view from "../conversation/view.js";
import { Price, retell } from "./retelling.js";

/** Ask where the branch that is shown shall begin, and make that one; `most`: tokens that the model reads. */
export async function leaveOutBeginning(most) {
  const beginnings = beginningsOf(view.shownBranch());
  if (!beginnings.length) {
    view.notice.value = { text: "The last message alone takes up this branch. Edit it to a shorter one." };
    return;
  }
  const fits = beginnings.find(({ tokens }) => tokens <= most / 2) ?? beginnings.at(-1);
  const start = await ask("cut-title", (close) => html`<${Cut} beginnings=${beginnings} first=${fits.id} close=${close} />`);
  if (start) await retell({ start }, { asks: true });
}

/** The user's messages of a branch, but for the first: `{id, text, tokens}`, about as many as there are from it on. */
function beginningsOf(path) {
  const all = tokensOf(path, "");
  const length = path.reduce((sum, { text }) => sum + text.length, 0);
  const first = path.findIndex(({ role }) => role === "user");
  let before = 0;
  const found = [];
  for (const [index, { id, role, text }] of path.entries()) {
    if (role === "user" && index > first) found.push({ id, text, tokens: Math.round((all * (length - before)) / length) });
    before += text.length;
  }
  return found;
}

class Cut extends Component {
  state = { start: this.props.first };

  render({ beginnings, close }, { start }) {
    return html`
      <h2 id="cut-title">Leave out the beginning</h2>
      <p>A new branch keeps the instructions, if there are any, and begins with this message. All that is there now stays.</p>
      <p><select aria-label="The branch begins with" value=${start} onChange=${({ target }) => this.setState({ start: target.value })}>
        ${beginnings.map(({ id, text, tokens }) => html`<option value=${id}>${excerpt(text, 40)} (about ${tokens.toLocaleString()} tokens)</option>`)}
      </select></p>
      <p><${Price} change=${{ start }} /></p>
      <div class="choices">
        <button class="main" autofocus onClick=${() => close(start)}>Make this branch</button>
        <button onClick=${() => close()}>Cancel</button>
      </div>
    `;
  }
}
