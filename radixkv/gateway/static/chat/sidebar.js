// The conversations that the server keeps: to open, look for, begin, import.

import { Component, html, signal } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";
import { list } from "./api.js";
import { Hits } from "./hits.js";
import { importFile } from "./importing.js";
import { sought } from "./outline/state.js";
import { go } from "./routing.js";
import { followed, listVersion, panel } from "./view.js";

const PAGE = 50;
const MOST_AT_ONCE = 200; // that the server lists
const PAUSE_MS = 200;

/** Files to be imported, dropped on the list. */
export const dropped = signal(null);

function begin() {
  go("");
  document.getElementById("composer-text")?.focus();
}

export class Sidebar extends Component {
  state = { conversations: [], hasMore: false, search: "", error: null, report: null };
  #turn = 0; // of the list that was asked for last

  componentDidMount() {
    const onFocus = () => this.load(); // other tabs begin conversations too
    addEventListener("focus", onFocus);
    const stops = [
      listVersion.subscribe(() => this.load()),
      dropped.subscribe((files) => files && this.importAll(files)),
      () => removeEventListener("focus", onFocus),
    ];
    this.componentWillUnmount = () => stops.forEach((stop) => stop());
  }

  async load(more = false) {
    const { conversations, search } = this.state;
    const turn = ++this.#turn;
    const query = { limit: more ? PAGE : Math.min(MOST_AT_ONCE, Math.max(PAGE, conversations.length)) };
    if (search) query.search = search;
    if (more) query.before = conversations.at(-1).updated;
    try {
      const found = await list(query);
      if (search !== this.state.search || turn !== this.#turn) return;
      const all = more ? [...conversations, ...found.conversations] : found.conversations;
      this.setState({ conversations: all, hasMore: found.has_more, error: null });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  onSearch = (event) => {
    clearTimeout(this.timer);
    this.setState({ search: event.target.value });
    sought.value = event.target.value;
    this.timer = setTimeout(() => this.load(), PAUSE_MS);
  };

  onFile = (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    this.importAll(files);
  };

  async importAll(files) {
    const reports = [];
    for (const file of files) {
      const onProgress = (done, all) => this.setState({ report: `Importing ${file.name}: ${done} of ${all}` });
      const report = await importFile(file, onProgress).catch((error) => error.message);
      reports.push(files.length > 1 ? `${file.name}: ${report}` : report);
      this.setState({ report: reports.join(" ") });
    }
    this.load();
  }

  render(_, { conversations, hasMore, search, error, report }) {
    return html`
      <div class="sidebar-head">
        <button class="main" onClick=${begin}><${Icon} name="plus" />New chat</button>
        <button onClick=${() => this.chooser.click()} title="Also files dropped here: exports of ChatGPT, Claude, Open WebUI, LibreChat, SillyTavern, OpenAssistant trees, or of this page"><${Icon} name="upload" />Import</button>
        <input type="file" multiple accept=".json,.jsonl,application/json" class="hidden-text" tabindex="-1" aria-label="File to import"
          ref=${(element) => (this.chooser = element)} onChange=${this.onFile} />
      </div>
      <label class="hidden-text" for="search">Search conversations</label>
      <input id="search" type="search" placeholder="Search" value=${search} onInput=${this.onSearch} />
      <div role="status">${report && html`<p class="small soft">${report}</p>`}</div>
      ${error && html`<p class="notice danger small">${error}</p>`}
      <ul class="conversations">
        ${conversations.map(
          ({ id, title, num_messages, hits, has_more_hits }) => html`
            <li key=${id}>
              <a href=${`#${id}`} aria-current=${id === followed.value ? "true" : undefined} onClick=${() => (panel.value = null)}>
                <span class="title">${title}</span><span class="small soft numbers" aria-label=${`${num_messages} messages`}>${num_messages}</span>
              </a>
              ${hits?.length > 0 && html`<${Hits} id=${id} hits=${hits} hasMore=${has_more_hits} onOpen=${() => (panel.value = null)} />`}
            </li>
          `,
        )}
      </ul>
      ${!conversations.length && !error && html`<p class="soft small">${search ? "None found." : "What you write is kept here."}</p>`}
      ${hasMore && html`<button onClick=${() => this.load(true)}>Older ones</button>`}
    `;
  }
}
