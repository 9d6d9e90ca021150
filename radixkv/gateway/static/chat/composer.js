// Where one writes: the text is kept in this browser until the server has it.

import { Component, html } from "../vendor/htm-preact.js";
import { characters, ending, excerpt, newId } from "./conversation.js";

const SETTINGS = "radixkv.settings";
const MOST_DRAFTS = 8;
const KEPT = "radixkv.draft.";

/** How replies are asked for: `{n, temperature, max_tokens}`, as far as chosen; kept in this browser. */
export function readSettings() {
  try {
    return { n: 1, ...JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") };
  } catch {
    return { n: 1 };
  }
}

/**
 * The field and what belongs to it; nothing is sent while what it would go on from is still being written (`isWaiting`). `branchAt`: how many characters of `branchFrom` it goes on from. `onSend({id, text, settings})` resolves once the server has the message, and throws what a
 * person should read; the same id is sent again after that.
 */
export class Composer extends Component {
  state = { text: "", settings: readSettings(), error: null, isSending: false, showsSettings: false };
  #id = newId();

  componentDidMount() {
    this.restore(this.props.place);
  }

  componentDidUpdate({ place }) {
    if (place !== this.props.place) this.restore(this.props.place);
    this.fit();
  }

  restore(place) {
    this.#id = newId();
    this.setState({ text: localStorage.getItem(KEPT + place) ?? "", error: null }, () => this.fit());
  }

  fit() {
    if (!this.field) return;
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight + 2, window.innerHeight * 0.4)}px`;
  }

  focus() {
    this.field?.focus();
  }

  fill(text) {
    this.setText(text);
    this.focus();
  }

  setText(text) {
    this.setState({ text });
    try {
      if (text) localStorage.setItem(KEPT + this.props.place, text);
      else localStorage.removeItem(KEPT + this.props.place);
    } catch {
      // full: the text is in the field all the same
    }
  }

  setSettings(change) {
    const settings = { ...this.state.settings, ...change };
    this.setState({ settings });
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  }

  send = async (event) => {
    event?.preventDefault();
    const { text, settings, isSending } = this.state;
    const { place, onSend, isWaiting } = this.props;
    if (!text.trim() || isSending || isWaiting) return;
    this.setState({ isSending: true, error: null });
    try {
      await onSend({ id: this.#id, text, settings });
      localStorage.removeItem(KEPT + place);
      this.#id = newId();
      this.setState({ isSending: false });
      if (this.props.place === place) this.setText(this.state.text.startsWith(text) ? this.state.text.slice(text.length) : this.state.text);
    } catch (error) {
      this.setState({ error: error.message, isSending: false });
    }
    this.focus();
  };

  onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(hover: hover)").matches) this.send(event);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.send(event);
    if (event.key === "Escape" && this.props.branchFrom) this.props.onLeaveBranch();
  };

  render({ branchFrom, branchAt, onLeaveBranch, isRunning, isWaiting, onStop }, { text, settings, error, isSending, showsSettings }) {
    const chosen = `${settings.n > 1 ? `${settings.n} drafts` : "1 reply"}${settings.temperature == null ? "" : `, temperature ${settings.temperature}`}`;
    return html`
      <form class="composer" onSubmit=${this.send}>
        ${error && html`<p class="notice danger" role="alert">${error} <button type="submit">Send again</button></p>`}
        ${branchFrom &&
        html`<p class="branching small">
          <span>A new branch below “${branchAt ? ending(characters(branchFrom.text).slice(0, branchAt).join("")) : excerpt(branchFrom.text)}”</span>
          <button type="button" class="bare" onClick=${onLeaveBranch} aria-label="Go on at the end instead">✕</button>
        </p>`}
        <label class="hidden-text" for="composer-text">Message</label>
        <textarea
          id="composer-text" rows="1" value=${text} placeholder="Write a message" onInput=${(event) => this.setText(event.target.value)}
          onKeyDown=${this.onKey} ref=${(field) => (this.field = field)}
        ></textarea>
        <div class="composer-foot">
          <button type="button" class="bare small" aria-expanded=${showsSettings} aria-controls="settings"
            onClick=${() => this.setState({ showsSettings: !showsSettings })}>${chosen} ▾</button>
          <span class="spring"></span>
          ${isRunning && html`<button type="button" onClick=${onStop}>■ Stop</button>`}
          <button class="main" disabled=${!text.trim() || isSending || isWaiting}>${isSending ? "Sending" : "Send"}</button>
        </div>
        ${showsSettings && html`<${Settings} settings=${settings} onChange=${(change) => this.setSettings(change)} />`}
      </form>
    `;
  }
}

function Settings({ settings, onChange }) {
  const number = (name) => (event) => onChange({ [name]: event.target.value === "" ? undefined : Number(event.target.value) });
  return html`
    <fieldset id="settings" class="settings">
      <legend class="hidden-text">How replies are asked for</legend>
      <label>Drafts at once <input type="number" min="1" max=${MOST_DRAFTS} value=${settings.n}
        onInput=${(event) => onChange({ n: Math.min(MOST_DRAFTS, Math.max(1, Math.round(Number(event.target.value) || 1))) })} /></label>
      <label>Temperature <input type="number" min="0" max="2" step="0.1" placeholder="model's" value=${settings.temperature ?? ""}
        onInput=${number("temperature")} /></label>
      <label>Longest reply <input type="number" min="1" step="1" placeholder="tokens" value=${settings.max_tokens ?? ""}
        onInput=${number("max_tokens")} /></label>
    </fieldset>
  `;
}
