// Branches to be set side by side, chosen by the boxes before them: with a finger too, and by keys.

import { Component, html } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { NAMES, ending, excerpt } from "../conversation/conversation.js";
import * as view from "../conversation/view.js";

const MOST_SHOWN = 40; // branches at once, the latest first
const SEARCHED = 8; // so many, from which on there is a field to search them

/** Ask which branches shall stand side by side, and set them so. */
export async function chooseBranches() {
  const chosen = view.compared.peek() ?? [view.tip.peek()];
  const ends = endsOf(view.conversation.peek());
  const tips = await ask("choose-title", (close) => html`<${Choose} ends=${ends} first=${chosen} close=${close} />`);
  if (tips) view.compare(tips);
}

/** The last message of each branch, the latest first: `{id, words, asked}`, and what it replies to. */
function endsOf(tree) {
  const ends = [];
  const open = tree.children(null);
  while (open.length) {
    const message = open.pop();
    const below = tree.children(message.id);
    open.push(...below);
    if (!below.length) ends.push(message);
  }
  ends.sort((one, other) => other.created - one.created);
  return ends.map(({ id, role, text, parent }) => {
    const above = tree.get(parent)?.text ?? "";
    return { id, words: `${NAMES[role]}: ${excerpt(text, 70) || "not written yet"}`, asked: above && ending(above, 60), text: `${above} ${text}` };
  });
}

class Choose extends Component {
  state = { chosen: this.props.first, sought: "" };

  turn = (id) => {
    const { chosen } = this.state;
    this.setState({ chosen: chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id] });
  };

  submit = (event) => {
    event.preventDefault();
    if (this.state.chosen.length > 1) this.props.close(this.state.chosen);
  };

  render({ ends, close }, { chosen, sought }) {
    const found = ends.filter(({ text }) => text.toLowerCase().includes(sought.toLowerCase()));
    return html`<form class="choose" onSubmit=${this.submit}>
      <h2 id="choose-title">Branches side by side</h2>
      ${ends.length > SEARCHED && html`<input type="search" aria-label="Search branches" placeholder="Search" onInput=${({ target }) => this.setState({ sought: target.value })} />`}
      <ul>
        ${found.slice(0, MOST_SHOWN).map(({ id, words, asked }) => html`<li key=${id}><label>
          <input type="checkbox" checked=${chosen.includes(id)} onChange=${() => this.turn(id)} />
          <span><span dir="auto">${words}</span>${asked && html`<span class="soft small" dir="auto">${asked}</span>`}</span>
        </label></li>`)}
      </ul>
      ${found.length > MOST_SHOWN && html`<p class="soft small">and ${found.length - MOST_SHOWN} older ones: search for them</p>`}
      <div class="choices">
        <button class="main" disabled=${chosen.length < 2}>Set ${chosen.length > 1 ? chosen.length : ""} side by side</button>
        <button type="button" onClick=${() => close()}>Cancel</button>
      </div>
    </form>`;
  }
}
