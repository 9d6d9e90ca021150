// The tags of conversations: which they have, and another one.

import { Component, html } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { changeTags } from "./keeping.js";
import { loadTags, tags } from "./list.js";

const MOST_CHARACTERS = 64;

/** Ask which tags they have, and give them those; whether that was done. */
export async function tagAll(conversations) {
  await loadTags();
  const wanted = await ask("tags-title", (close) => html`<${Tags} conversations=${conversations} close=${close} />`);
  return wanted ? changeTags(conversations, wanted.added, wanted.taken) : false;
}

/** A tag that some of several have stays with those, unless its box is touched. */
class Tags extends Component {
  state = { changed: new Map() }; // whether all have it then, by tag

  submit = (event) => {
    event.preventDefault();
    const those = (isWanted) => [...this.state.changed].filter(([, isThere]) => isThere === isWanted).map(([name]) => name);
    const written = this.field.value.trim();
    const [added, taken] = [new Set([...those(true), ...(written ? [written] : [])]), those(false)];
    this.props.close(added.size || taken.length ? { added: [...added], taken } : null);
  };

  change(name, isThere) {
    this.setState({ changed: new Map(this.state.changed).set(name, isThere) });
  }

  render({ conversations, close }, { changed }) {
    const own = conversations.flatMap((one) => one.tags);
    const names = [...new Set([...tags.value.map((one) => one.tag), ...own])].sort((one, other) => one.localeCompare(other));
    const count = (name) => conversations.filter((one) => one.tags.includes(name)).length;
    return html`<form onSubmit=${this.submit}>
      <h2 id="tags-title">${conversations.length === 1 ? "Tags of this conversation" : `Tags of ${conversations.length} conversations`}</h2>
      <div class="tag-boxes">
        ${names.map((name) => {
          const num = count(name);
          const isAll = changed.get(name) ?? num === conversations.length;
          const isSome = !changed.has(name) && num > 0 && num < conversations.length;
          return html`<label key=${name}><input type="checkbox" checked=${isAll} indeterminate=${isSome}
            onChange=${(event) => this.change(name, event.target.checked)} /> ${name}</label>`;
        })}
      </div>
      <p><label for="new-tag">Another tag</label>
        <input id="new-tag" type="text" maxlength=${MOST_CHARACTERS} autofocus autocomplete="off" ref=${(element) => (this.field = element)} /></p>
      <div class="choices"><button class="main">Save</button> <button type="button" onClick=${() => close()}>Cancel</button></div>
    </form>`;
  }
}
