// The conversations that the server keeps: to open, look for, begin, import, put in order.

import { Component, html } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { go } from "../conversation/routing.js";
import { closePanel, panel } from "../conversation/view.js";
import { sought } from "../outline/state.js";
import { AccountButton } from "./account.js";
import { Entries } from "./entries.js";
import { ImportButton, report } from "./import_button.js";
import { deleteForGood } from "./keeping.js";
import { failure, isLoaded, keepListed, listed, loadAll, look, place, search, tag, tags } from "./list.js";
import { SelectionBar, chosen, toggleChoosing } from "./selection.js";

const PLACES = { archive: "Archive", trash: "Trash" };
const EMPTY = { all: "What you write is kept here.", archive: "Nothing is archived.", trash: "The trash is empty." };

/** A new conversation, which is there once something is said in it. */
export function begin() {
  if (panel.peek()) closePanel();
  go("");
  document.getElementById("composer-text")?.focus();
}

/** What is looked for is marked in the outline, too. */
function onSearch(event) {
  sought.value = event.target.value;
  look({ search: event.target.value });
}

export class Sidebar extends Component {
  componentDidMount() {
    keepListed();
  }

  render() {
    const isEmpty = isLoaded.value && !listed.value.length && !failure.value;
    return html`
      <div class="sidebar-head">
        <button class="main" onClick=${begin} title="Ctrl+Shift+O"><${Icon} name="plus" />New chat</button>
        <${ImportButton} />
      </div>
      <label class="hidden-text" for="search">Search conversations</label>
      <input id="search" type="search" placeholder="Search" title="Ctrl+K" value=${search.value} onInput=${onSearch} />
      <${TagRow} />
      <${PlaceHead} />
      <${Report} />
      ${failure.value && html`<p class="notice danger small">${failure.value}</p>`}
      <${Entries} />
      ${isEmpty && html`<p class="soft small">${search.value || tag.value ? "None found." : EMPTY[place.value]}</p>`}
      <${SelectionBar} />
      <${Foot} />
    `;
  }
}

/** The tags that there are, each shows what has it. */
function TagRow() {
  if (!tags.value.length) return null;
  return html`<div class="tag-row" role="group" aria-label="Tags">
    ${tags.value.map(({ tag: name, num_conversations }) => {
      const isChosen = tag.value === name;
      return html`<button key=${name} class="tag" aria-pressed=${isChosen} onClick=${() => look({ tag: isChosen ? null : name })}>
        ${name}<span class="numbers">${num_conversations}</span></button>`;
    })}
  </div>`;
}

/** Where one is, if that is not where one begins. */
function PlaceHead() {
  const at = place.value;
  if (at === "all") return null;
  const empty = async () => {
    await loadAll();
    deleteForGood(listed.peek());
  };
  return html`<div class="place-head">
    <h2>${PLACES[at]}</h2>
    <span class="spring"></span>
    ${at === "trash" && listed.value.length > 0 && html`<button class="bare danger small" onClick=${empty}>Empty it</button>`}
    <button class="bare icon-button" aria-label=${`Leave the ${at}`} title="All conversations" onClick=${() => look({ place: "all" })}><${Icon} name="x" /></button>
  </div>`;
}

function Report() {
  return html`<div role="status">${report.value && html`<p class="small soft report"><span>${report.value}</span>
    <button class="bare icon-button" aria-label="Close" onClick=${() => (report.value = null)}><${Icon} name="x" /></button></p>`}</div>`;
}

/** Other places, choosing several, who one is. */
function Foot() {
  const leads = (to, icon) =>
    html`<button class="bare icon-button" aria-label=${PLACES[to]} title=${PLACES[to]} aria-pressed=${place.value === to}
      onClick=${() => look({ place: place.value === to ? "all" : to })}><${Icon} name=${icon} /></button>`;
  return html`<div class="sidebar-foot">
    <${AccountButton} />
    <span class="spring"></span>
    <button class="bare icon-button" aria-label="Choose several" title="Choose several" aria-pressed=${chosen.value !== null} onClick=${toggleChoosing}><${Icon} name="list-checks" /></button>
    ${leads("archive", "archive")} ${leads("trash", "trash")}
  </div>`;
}
