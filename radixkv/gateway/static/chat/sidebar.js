// The conversations that the server keeps: to open, look for, begin, import.

import { Component, html, signal } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";
import { importBatch, list } from "./api.js";
import { go } from "./routing.js";
import { followed, listVersion, panel } from "./view.js";

const PAGE = 50;
const MOST_AT_ONCE = 200; // that the server lists
const BATCH_BYTES = 2_000_000;
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
        <button onClick=${() => this.chooser.click()} title="Also files dropped here: ChatGPT's conversations.json, OpenAssistant trees, or an export of this page"><${Icon} name="upload" />Import</button>
        <input type="file" multiple accept=".json,.jsonl,application/json" class="hidden-text" tabindex="-1" aria-label="File to import"
          ref=${(element) => (this.chooser = element)} onChange=${this.onFile} />
      </div>
      <label class="hidden-text" for="search">Search conversations</label>
      <input id="search" type="search" placeholder="Search" value=${search} onInput=${this.onSearch} />
      <div role="status">${report && html`<p class="small soft">${report}</p>`}</div>
      ${error && html`<p class="notice danger small">${error}</p>`}
      <ul class="conversations">
        ${conversations.map(
          ({ id, title, num_messages }) => html`
            <li key=${id}>
              <a href=${`#${id}`} aria-current=${id === followed.value ? "true" : undefined} onClick=${() => (panel.value = null)}>
                <span class="title">${title}</span><span class="small soft numbers" aria-label=${`${num_messages} messages`}>${num_messages}</span>
              </a>
            </li>
          `,
        )}
      </ul>
      ${!conversations.length && !error && html`<p class="soft small">${search ? "None found." : "What you write is kept here."}</p>`}
      ${hasMore && html`<button onClick=${() => this.load(true)}>Older ones</button>`}
    `;
  }
}

/** Send a file's conversations in pieces that the server takes; a sentence on what came of it. Throws what people should read. */
export async function importFile(file, onProgress) {
  const entries = readEntries(await file.text());
  if (!entries.length) return "This file holds no conversation.";
  let numDone = 0;
  let numImported = 0;
  const skipped = [];
  while (numDone < entries.length) {
    let end = numDone;
    for (let size = 0; end < entries.length && (end === numDone || size + entries[end].size < BATCH_BYTES); end++) size += entries[end].size;
    const batch = entries.slice(numDone, end).map((entry) => entry.value);
    try {
      const answer = await importBatch(batch);
      numImported += answer.conversations.length;
      skipped.push(...answer.skipped.map(({ index, reason }) => `No. ${numDone + index + 1}: ${reason}`));
    } catch (error) {
      if (error.status !== 413) throw new Error(numImported ? `${numImported} imported, then: ${error.message}` : error.message, { cause: error });
      skipped.push(...batch.map((_, index) => `No. ${numDone + index + 1}: ${error.message}`));
    }
    numDone = end;
    onProgress(numDone, entries.length);
  }
  const rest = skipped.length ? ` ${skipped.length} left out. ${skipped.slice(0, 3).join(" ")}` : "";
  return `${numImported} imported.${rest}`;
}

function readEntries(text) {
  let values;
  try {
    const whole = JSON.parse(text);
    values = Array.isArray(whole) ? whole : [whole];
  } catch {
    try {
      values = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    } catch (error) {
      throw new Error("This file is no JSON. Of a ChatGPT export it is the file conversations.json within the archive.", { cause: error });
    }
  }
  return values.map((value) => ({ value, size: JSON.stringify(value).length }));
}
