// The chat page: which conversation and which branch of it is shown, and what one does to it.
//
// The server keeps everything; the page follows its events, so that two tabs show the same. The address tells what is shown:
// #conv_…/msg_…: the branch that ends there.

import { Component, html, render } from "../vendor/htm-preact.js";
import * as api from "./api.js";
import { copyText } from "./clipboard.js";
import { Compare } from "./compare.js";
import { Composer, readSettings } from "./composer.js";
import { saveText } from "./download.js";
import { Conversation, characters, newId } from "./conversation.js";
import { keepFocus } from "./focus.js";
import { Head } from "./head.js";
import { Message } from "./message.js";
import { Minimap } from "./minimap.js";
import { paced } from "./pace.js";
import { dressed } from "./text/dressed.js";
import { showHeader } from "../page.js";
import { Sidebar } from "./sidebar.js";
import { Start } from "./start.js";

const NEAR_END = 120; // pixels from the end of the thread within which it is kept at the end

class Chat extends Component {
  state = {
    conversation: null, tip: null, branchFrom: null, compared: null, isLost: false, notice: null, said: "", shows: null, listVersion: 0,
    wantsDrafts: null, branchAt: null,
  };
  #following = null;

  refresh = paced(() => this.setState({})); // tokens may come faster than frames

  does = {
    turn: (message, step) => this.turn(message, step),
    focus: (message, step) => this.focusNext(message, step),
    edit: (message, text) => this.attempt(() => this.edit(message, text)),
    regenerate: (message) => this.attempt(() => this.regenerate(message)),
    goOn: (message) => this.attempt(() => this.regenerate(message, true)),
    branch: (message) => this.branch(message),
    compare: (message) => this.compare(this.state.conversation.siblings(message).map((one) => this.state.conversation.tip(one.id))),
    stop: (message) => this.attempt(() => api.stop(this.id, message.id)),
    remove: (message) => this.attempt(() => this.remove(message)),
    copy: (message) => this.attempt(() => copyText(message.text).then(() => this.say("Copied."))),
  };

  head = {
    toggle: (panel) => this.toggle(panel),
    rename: () => this.attempt(() => this.rename()),
    save: (format) => this.attempt(() => this.save(format)),
    remove: () => this.attempt(() => this.removeAll()),
  };

  get id() {
    return this.state.conversation?.info.id ?? null;
  }

  componentDidMount() {
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      this.setState(this.state.shows ? { shows: null } : { compared: null });
    });
    this.route();
  }

  // -- what is shown

  route() {
    const [id, tip] = location.hash.slice(1).split("/");
    if (!id) {
      if (this.state.conversation || this.#following) this.leave();
    } else if (id !== this.#following?.id) {
      this.open(id, tip);
    } else if (tip && this.state.conversation?.has(tip) && tip !== this.state.tip) {
      this.show(tip);
    }
  }

  leave() {
    this.#following?.stop.abort();
    this.#following = null;
    this.setState({ conversation: null, tip: null, branchFrom: null, compared: null, isLost: false, shows: null });
    document.title = "radixkv";
  }

  async open(id, tip = null) {
    this.leave();
    const stop = new AbortController();
    this.#following = { id, stop };
    const onEvent = (name, data) => this.heard(name, data, tip);
    const onState = (state) => this.setState({ isLost: state === "lost" });
    try {
      await api.events(id, { onEvent, onState, signal: stop.signal });
    } catch (error) {
      if (stop.signal.aborted) return;
      this.close(error.status === 404 ? "That conversation is not there any more." : error.message);
    }
  }

  /** Show none instead of one that is gone; the way back leads to the one before. */
  close(notice) {
    history.replaceState(null, "", location.pathname);
    this.leave();
    this.setState({ notice, listVersion: this.state.listVersion + 1 });
  }

  heard(name, data, wanted) {
    const { conversation, tip, branchFrom } = this.state;
    if (name === "snapshot") {
      const next = conversation ?? new Conversation(data);
      if (conversation) conversation.load(data);
      const end = next.has(tip) ? next.tip(tip) : next.has(wanted) ? wanted : next.start();
      this.show(end, { conversation: next, isFirst: !conversation, branchFrom });
      this.dropCompared();
      return;
    }
    if (!conversation) return;
    if (name === "message") this.heardMessage(data);
    else if (name === "delta") conversation.grow(data);
    else if (name === "conversation") {
      conversation.info = data;
      document.title = `${data.title} – radixkv`;
      this.setState({ listVersion: this.state.listVersion + 1 });
    } else if (name === "removed") {
      this.drop(data.ids);
    } else if (name === "deleted") {
      this.close("This conversation was deleted.");
    }
    this.refresh();
  }

  /** Messages are gone: where they were shown, another version is, or what stands above. */
  drop(ids) {
    const { conversation, tip, branchFrom } = this.state;
    const gone = new Set(ids);
    const first = conversation.lineage(tip).find((message) => gone.has(message.id));
    conversation.remove(ids);
    const [next] = first ? conversation.siblings(first) : [];
    this.show(first ? (next ? conversation.tip(next.id) : first.parent) : tip, { branchFrom });
    this.dropCompared();
  }

  dropCompared() {
    const { conversation, compared } = this.state;
    const left = compared?.filter((id) => conversation?.has(id)) ?? [];
    if (compared && left.length < compared.length) this.setState({ compared: left.length > 1 ? left : null });
  }

  heardMessage(message) {
    const { conversation, tip, branchFrom, compared } = this.state;
    const before = conversation.get(message.id);
    conversation.put(message);
    if (before?.status === "running" && message.status !== "running") {
      this.say(message.status === "complete" ? "The reply is there." : "The reply has ended.");
    }
    if (before) return;
    if (message.parent === tip) this.show(message.id, { branchFrom }); // also one that another tab has sent
    if (compared) this.setState({ compared: compared.map((one) => (one === message.parent ? message.id : one)) });
  }

  /** Show the branch that ends with `tip`; `branchFrom`: the message that the next one goes on from, if that is still there. */
  show(tip, { conversation = this.state.conversation, isFirst = false, branchFrom = null } = {}) {
    if (tip) conversation.choose(tip);
    this.isAtEnd = isFirst || this.isAtEnd !== false;
    this.setState({ conversation, tip, branchFrom: conversation.has(branchFrom) ? branchFrom : null });
    const address = tip ? `#${conversation.info.id}/${tip}` : `#${conversation.info.id}`;
    if (location.hash !== address) history.replaceState(null, "", address);
    document.title = `${conversation.info.title} – radixkv`;
  }

  turn(message, step) {
    const { conversation } = this.state;
    const siblings = conversation.siblings(message);
    const next = siblings[siblings.findIndex((one) => one.id === message.id) + step];
    if (!next) return;
    this.isAtEnd = false;
    this.show(conversation.tip(next.id));
    this.setState({}, () => document.getElementById(next.id)?.focus({ preventScroll: false }));
    this.say(`Version ${siblings.indexOf(next) + 1} of ${siblings.length}`);
  }

  focusNext(message, step) {
    const path = this.state.conversation.lineage(this.state.tip);
    const next = path[path.findIndex((one) => one.id === message.id) + step];
    if (next) document.getElementById(next.id)?.focus();
  }

  compare(tips) {
    const own = [...new Set(tips)];
    if (own.length > 1) this.setState({ compared: own, shows: null });
  }

  say(said) {
    this.setState({ said });
  }

  // -- what one does

  /** Whether it went well; if not, what is wrong is shown. */
  async attempt(action) {
    this.setState({ notice: null });
    try {
      await action();
      return true;
    } catch (error) {
      this.setState({ notice: error.message });
      return false;
    }
  }

  /** A new message below what is shown, in a new conversation if there is none, and the replies to it. */
  async send({ id, text, settings }) {
    this.setState({ notice: null });
    const { conversation, tip, branchFrom, branchAt } = this.state;
    if (this.#following && !conversation) throw new Error("This conversation is still being fetched.");
    const instructions = conversation ? "" : this.instructions?.value.trim();
    let parent = branchFrom ?? tip;
    let owner = this.id;
    if (!owner) {
      const messages = instructions ? [{ role: "system", text: instructions }] : [];
      const made = (this.#made ??= await api.create(messages));
      owner = made.id;
      parent = made.head;
    }
    const position = branchFrom ? branchAt : null;
    const answer = await api.post(owner, { id, parent, position, role: "user", text, replies: api.repliesOf(settings, id) });
    this.#made = null;
    this.isAtEnd = true;
    if (owner === this.id) this.take(owner, answer);
    else if (!this.#following) location.hash = `#${owner}`;
    this.setState({ notice: answer.refusal ?? null });
    const drafts = answer.messages.slice(1).map((one) => one.id);
    this.setState({ listVersion: this.state.listVersion + 1, wantsDrafts: drafts.length > 1 ? drafts : null });
  }
  #made = null; // a conversation whose first message has not arrived yet

  /** What the server has answered is shown at once, unless one has gone to another conversation; its events tell the same. */
  take(owner, { messages, refusal = null }) {
    const { conversation } = this.state;
    this.setState({ notice: refusal });
    if (owner !== this.id) return;
    for (const message of messages) conversation.put(message);
    const replies = messages.filter((message) => message.role === "assistant");
    this.show((replies[0] ?? messages.at(-1)).id);
    if (replies.length > 1) this.compare(replies.map((reply) => reply.id));
  }

  async edit(message, text) {
    if (text === message.text) return;
    const owner = this.id;
    const id = newId();
    const body = { id, parent: message.parent, role: message.role, text };
    if (message.role === "user") body.replies = api.repliesOf(readSettings(), id);
    this.take(owner, await api.post(owner, body));
  }

  /** Further replies; `goesOn`: one, which begins with all of this reply's text. */
  async regenerate(message, goesOn = false) {
    const asked = goesOn || message.role === "user" ? message.id : message.parent;
    const owner = this.id;
    const replies = api.repliesOf({ ...readSettings(), ...(goesOn && { n: 1 }) }, newId());
    this.take(owner, await api.reply(owner, asked, { ...replies, continue: goesOn }));
  }

  /** The next message goes below this one: of a reply that is being written, below what is written of it now. */
  branch({ id, status, text }) {
    const branchAt = status === "running" ? characters(text).length : null;
    this.setState({ branchFrom: id, branchAt, compared: null }, () => this.composer.focus());
  }

  async remove(message) {
    const { conversation } = this.state;
    let numBelow = -1;
    for (const open = [message.id]; open.length; numBelow++) for (const one of conversation.children(open.pop())) open.push(one.id);
    const what = numBelow ? `this message and the ${numBelow} below it` : "this message";
    if (!confirm(`Delete ${what}? This cannot be undone.`)) return;
    const owner = this.id;
    const { ids } = await api.removeMessage(owner, message.id);
    if (owner === this.id) this.drop(ids);
  }

  async rename() {
    const title = prompt("Title of this conversation", this.state.conversation.info.title)?.trim();
    if (title) await api.rename(this.id, title);
  }

  async removeAll() {
    if (!confirm(`Delete “${this.state.conversation.info.title}” with all its branches? This cannot be undone.`)) return;
    const owner = this.id;
    await api.remove(owner);
    if (this.id === owner || !this.id) this.close(null);
  }

  async save(format) {
    const { conversation, tip } = this.state;
    const text = await api.exported(this.id, format, tip);
    const name = conversation.info.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
    saveText(format === "html" ? await dressed(text) : text, `${name}.${format === "markdown" ? "md" : format}`);
  }

  stopAll() {
    for (const message of this.state.conversation.running()) this.does.stop(message);
  }

  // -- the page

  componentDidUpdate() {
    if (this.isAtEnd && this.thread && !this.state.compared) this.thread.scrollTop = this.thread.scrollHeight;
    const { wantsDrafts, conversation } = this.state;
    if (wantsDrafts && wantsDrafts.every((id) => conversation?.has(id))) {
      this.setState({ wantsDrafts: null });
      this.compare(wantsDrafts);
    }
    keepFocus();
  }

  onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = this.thread;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END;
  };

  toggle(panel) {
    this.setState({ shows: this.state.shows === panel ? null : panel });
  }

  render(_, state) {
    const { conversation, shows, listVersion, said } = state;
    return html`
      <div class=${`chat ${shows ? `shows-${shows}` : ""}`}>
        <aside class="sidebar" id="sidebar" aria-label="Conversations">
          <${Sidebar} current=${this.id} version=${listVersion} onOpen=${() => this.setState({ shows: null })}
            onNew=${() => { location.hash = ""; this.setState({ shows: null }); this.composer?.focus(); }} />
        </aside>
        <main>
          <${Head} conversation=${conversation} shows=${shows} does=${this.head} />
          ${this.renderNotices(state)}
          ${state.compared
            ? html`<${Compare} conversation=${conversation} tips=${state.compared} onClose=${() => this.setState({ compared: null })}
                onStop=${this.does.stop} onKeep=${(tip) => { this.isAtEnd = true; this.setState({ compared: null }); this.show(conversation.tip(tip)); }} />`
            : this.renderThread(state)}
          <div hidden=${Boolean(state.compared)}>${this.renderComposer(state)}</div>
        </main>
        ${conversation &&
        html`<aside class="map" id="map" aria-label="Branches">
          <h2 class="small">Branches</h2>
          <${Minimap} conversation=${conversation} tip=${state.tip} onGo=${(id) => { this.isAtEnd = false; this.show(id); this.reveal(id); }}
            onCompare=${(id) => this.compare([state.tip, conversation.tip(id)])} />
          <p class="soft small">A click shows a branch; with Shift, beside the one shown now.</p>
        </aside>`}
        ${shows && html`<button class="scrim" aria-label="Close" onClick=${() => this.setState({ shows: null })}></button>`}
        <div class="hidden-text" role="status" aria-live="polite">${said}</div>
      </div>
    `;
  }

  /** A message of the middle of a branch was chosen: the branch goes on to its end, with that message in sight. */
  reveal(id) {
    const { conversation } = this.state;
    this.show(conversation.tip(id));
    this.setState({ compared: null, shows: null }, () => document.getElementById(id)?.scrollIntoView({ block: "start" }));
  }

  renderNotices({ isLost, notice }) {
    return html`
      <div role="status">${isLost && html`<p class="notice">The server cannot be reached. Trying again.</p>`}</div>
      <div role="alert">${notice && html`<p class="notice danger">${notice}
        <button class="bare" onClick=${() => this.setState({ notice: null })} aria-label="Close">✕</button></p>`}</div>
    `;
  }

  renderThread({ conversation, tip, branchFrom }) {
    if (!conversation || conversation.isEmpty) {
      const field = (element) => (this.instructions = element);
      return html`<${Start} isNew=${!conversation} field=${field} onIdea=${(idea) => this.composer.fill(idea)} />`;
    }
    const path = conversation.lineage(tip);
    return html`
      <div class="thread" ref=${(element) => (this.thread = element)} onScroll=${this.onScroll}>
        ${path.map((message) => {
          const siblings = conversation.siblings(message);
          return html`<${Message} key=${message.id} message=${message} place=${siblings.indexOf(message)} count=${siblings.length}
            isTip=${message.id === tip} isStart=${message.id === branchFrom} does=${this.does} />`;
        })}
      </div>
    `;
  }

  renderComposer({ conversation, tip, branchFrom, branchAt }) {
    const from = conversation?.get(branchFrom);
    const isWaiting = from ? from.status === "running" && !branchAt : conversation?.get(tip)?.status === "running";
    return html`<${Composer} ref=${(element) => (this.composer = element)} place=${this.#following?.id ?? "new"} branchFrom=${from} branchAt=${branchAt} isWaiting=${isWaiting}
      isRunning=${Boolean(conversation?.running().length)} onStop=${() => this.stopAll()}
      onLeaveBranch=${() => this.setState({ branchFrom: null })} onSend=${(message) => this.send(message)} />`;
  }
}

showHeader();
render(html`<${Chat} />`, document.getElementById("app"));
