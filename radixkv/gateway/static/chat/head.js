// Above the branch that is shown: the conversation's title, what it has saved, what can be done with it as a whole.

import { Component, html } from "../vendor/htm-preact.js";

const KEYS = [
  ["Enter", "send; with Shift a new line"],
  ["↑ ↓", "from message to message"],
  ["← →", "the other versions of a message"],
  ["e", "edit it"], ["r", "a further reply"], ["b", "go on from it in a new branch"], ["c", "its versions side by side"],
  ["Esc", "leave an edit, a branch, a comparison"],
];

/** `does`: `toggle(panel)`, `rename()`, `save(format)`, `remove()`. `shows`: the panel that is open on a narrow screen. */
export class Head extends Component {
  choose(action) {
    this.closeMenu();
    action();
  }

  closeMenu() {
    this.menu.open = false;
    this.menu.querySelector("summary").focus();
  }

  onKey = (event) => {
    if (event.key !== "Escape" || !this.menu.open) return;
    event.stopPropagation();
    this.closeMenu();
  };

  onFocusOut = ({ relatedTarget }) => {
    if (!this.menu.contains(relatedTarget)) this.menu.open = false;
  };

  render({ conversation, shows, does }) {
    const totals = conversation?.totals();
    const share = totals?.read ? Math.round((100 * totals.cached) / totals.read) : 0;
    return html`
      <div class="chat-head">
        <button class="bare only-narrow" aria-expanded=${shows === "list"} aria-controls="sidebar" aria-label="Conversations"
          onClick=${() => does.toggle("list")}>☰</button>
        <h1>${conversation?.info.title ?? "New chat"}</h1>
        ${totals?.read > 0 &&
        html`<span class="soft small numbers saved" title="Of all tokens that the replies of this conversation had to read">
          ${totals.cached.toLocaleString()} tokens reused (${share}%)
        </span>`}
        <button class="bare" aria-label="Keys" title="Keys" onClick=${() => this.keys.showModal()}>?</button>
        ${conversation &&
        html`
          <details class="menu" ref=${(element) => (this.menu = element)} onKeyDown=${this.onKey} onFocusOut=${this.onFocusOut}>
            <summary aria-label="More" class="button">⋯</summary>
            <div class="menu-items">
              <button class="bare" onClick=${() => this.choose(does.rename)}>Rename</button>
              <button class="bare" onClick=${() => this.choose(() => does.save("markdown"))}>Save this branch as Markdown</button>
              <button class="bare" onClick=${() => this.choose(() => does.save("html"))}>Save this branch as HTML</button>
              <button class="bare" onClick=${() => this.choose(() => does.save("json"))}>Save all as JSON</button>
              <a class="button bare" href=${`/tree${location.hash}`}>Show in the tree</a>
              <button class="bare danger" onClick=${() => this.choose(does.remove)}>Delete</button>
            </div>
          </details>
          <button class="bare only-narrow" aria-expanded=${shows === "map"} aria-controls="map" aria-label="Branches"
            onClick=${() => does.toggle("map")}><svg viewBox="0 0 20 20" aria-hidden="true"><path d="M6 5v10M6 12c0-4 8-2 8-6" /><circle cx="6" cy="4" r="2" /><circle cx="6" cy="16" r="2" /><circle cx="14" cy="4" r="2" /></svg></button>
        `}
      </div>
      <dialog ref=${(element) => (this.keys = element)} aria-labelledby="keys-title">
        <h2 id="keys-title">Keys</h2>
        <dl class="keys">${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
        <form method="dialog"><button class="main">Close</button></form>
      </dialog>
    `;
  }
}
