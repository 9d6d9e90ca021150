// One message: what it says, its versions, what it cost, and what can be done with it.

import { Component, html } from "../vendor/htm-preact.js";
import { excerpt } from "./conversation.js";
import { Markdown } from "./markdown.js";

const NAMES = { system: "Instructions", user: "You", assistant: "Reply" };
const MOST_SHOWN = 12_000; // characters of a message of one's own, before it is asked for whole

/**
 * One message of a branch. `does`: what can be done with it, by name; see `Chat`. Shown again only when something of it changes.
 *
 * Keys, while the message has the focus: left and right show its other versions, e edits, r regenerates, b branches, c compares.
 */
export class Message extends Component {
  state = { isEditing: false, isWhole: false };

  shouldComponentUpdate(next, state) {
    if (state !== this.state) return true;
    return ["message", "place", "count", "isTip", "isStart"].some((name) => next[name] !== this.props[name]);
  }

  edit = () => this.setState({ isEditing: true });

  close = () => {
    this.setState({ isEditing: false });
    this.element?.focus();
  };

  save = async (text) => {
    if (await this.props.does.edit(this.props.message, text)) this.close();
  };

  onKey = (event) => {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const { message, does, count } = this.props;
    const actions = {
      ArrowLeft: () => does.turn(message, -1),
      ArrowRight: () => does.turn(message, 1),
      ArrowUp: () => does.focus(message, -1),
      ArrowDown: () => does.focus(message, 1),
      e: this.edit,
      r: message.role === "system" ? null : () => does.regenerate(message),
      b: message.status === "running" && !message.text ? null : () => does.branch(message),
      c: count > 1 ? () => does.compare(message) : null,
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };

  render({ message, place, count, isTip, isStart, does }, { isEditing, isWhole }) {
    const { id, role, status } = message;
    const isLong = role !== "assistant" && message.text.length > MOST_SHOWN && !isWhole;
    const text = isLong ? message.text.slice(0, MOST_SHOWN) : message.text;
    return html`
      <article
        id=${id} class=${`message ${role} ${status} ${isStart ? "start" : ""}`} tabindex=${isTip ? 0 : -1}
        aria-label=${`${NAMES[role]}: ${excerpt(message.text, 80) || status}`} onKeyDown=${this.onKey} ref=${(element) => (this.element = element)}
      >
        <div class="message-head">
          <h2>${NAMES[role]}</h2>
          ${message.details?.edited && html`<span class="soft small">edited by hand</span>`}
          ${count > 1 && html`<${Versions} message=${message} place=${place} count=${count} turn=${does.turn} />`}
        </div>
        ${isEditing
          ? html`<${Editor} message=${message} onSave=${this.save} onClose=${this.close} />`
          : html`<${Thinking} details=${message.details} />
              <${Content} role=${role} text=${text} />
              ${isLong && html`<button onClick=${() => this.setState({ isWhole: true }, () => this.element.focus())}>Show all ${message.text.length.toLocaleString()} characters</button>`}
              <${Outcome} message=${message} again=${() => does.regenerate(message)} />
              <${Actions} message=${message} count=${count} does=${does} edit=${this.edit} />`}
      </article>
    `;
  }
}

/** What the model thought before it replied, folded. */
function Thinking({ details }) {
  if (!details?.thinking) return null;
  return html`<details class="thinking"><summary class="soft small">Thinking</summary><div class="plain soft small" dir="auto">${details.thinking}</div></details>`;
}

function Content({ role, text }) {
  return role === "assistant" ? html`<${Markdown} text=${text} />` : html`<div class="plain" dir="auto">${text}</div>`;
}

function Versions({ message, place, count, turn }) {
  return html`
    <span class="versions" role="group" aria-label="Versions">
      <button class="bare" aria-label="Earlier version" disabled=${place === 0} onClick=${() => turn(message, -1)}>‹</button>
      <span class="numbers small">${place + 1} / ${count}</span>
      <button class="bare" aria-label="Later version" disabled=${place === count - 1} onClick=${() => turn(message, 1)}>›</button>
    </span>
  `;
}

/** How a reply came to its end, if that is worth a word. */
function Outcome({ message, again }) {
  const { role, status, details, error, text } = message;
  if (role !== "assistant") return null;
  if (status === "running") return html`<p class="soft small writing">${text ? "writing" : details?.thinking ? "thinking" : "reading"}<span class="dots" aria-hidden="true"></span></p>`;
  if (status === "failed") {
    return html`<p class="notice danger">${error ?? "This reply broke off."} <button onClick=${again}>Try again</button></p>`;
  }
  if (status === "stopped") return html`<p class="soft small">Stopped.</p>`;
  if (details?.finish_reason === "length") return html`<p class="soft small">Cut at the longest length allowed.</p>`;
  return null;
}

/** Whether a reply may have more to say: it did not come to an end of its own. */
function canGoOn({ role, status, details, parent, text }) {
  if (role !== "assistant" || !parent || !text) return false;
  return status === "stopped" || status === "failed" || details?.finish_reason === "length" || Boolean(details?.edited);
}

function Actions({ message, count, does, edit }) {
  const { role, status } = message;
  const isOwn = role !== "assistant";
  if (status === "running") {
    return html`
      <div class="actions">
        <button class="bare" onClick=${() => does.stop(message)}>■ Stop</button>
        <button class="bare" disabled=${!message.text} onClick=${() => does.branch(message)} title="Go on from what is written so far; this reply goes on too">Branch</button>
      </div>
    `;
  }
  const what = isOwn ? "message" : "reply";
  return html`
    <div class="actions">
      <${Cost} message=${message} />
      <span class="buttons">
        ${canGoOn(message) && html`<button class="bare" onClick=${() => does.goOn(message)} title="Write on from the end of this reply, as a new version">Continue</button>`}
        <button class="bare" onClick=${() => does.copy(message)} title=${`Copy the ${what}'s text`}>Copy</button>
        <button class="bare" onClick=${edit} title="A new version beside this one">Edit</button>
        ${role !== "system" &&
        html`<button class="bare" onClick=${() => does.regenerate(message)} title="A further reply beside those there are">
          ${isOwn ? "Reply again" : "Regenerate"}
        </button>`}
        <button class="bare" onClick=${() => does.branch(message)} title="Go on from here, beside what follows now">Branch</button>
        ${count > 1 && html`<button class="bare" onClick=${() => does.compare(message)} title="All versions side by side">Compare</button>`}
        <button class="bare" onClick=${() => does.remove(message)} aria-label=${`Delete this ${what} and what follows it`} title="Delete, with what follows">✕</button>
      </span>
    </div>
  `;
}

/** Tokens reused and computed, and how soon the reply began. */
function Cost({ message }) {
  const parts = costs(message.details);
  if (!parts.length) return html`<span></span>`;
  const { prompt_tokens: read, cached_tokens: reused } = message.details;
  const share = `${Math.round((100 * reused) / Math.max(1, read))}%`;
  return html`
    <span class="cost small soft numbers">
      <span class="share" title=${`${share} of the prompt was reused`} aria-hidden="true"><span style=${{ width: share }}></span></span>
      ${parts.join(" · ")}
    </span>
  `;
}

/** What a reply cost, in words. */
export function costs(details) {
  if (details?.prompt_tokens == null || details.cached_tokens == null) return []; // not known of a reply that broke off
  const { prompt_tokens: read, cached_tokens: reused, generated_tokens: written, first_token_ms: first, duration_ms: all, drafts } = details;
  const parts = [`${reused.toLocaleString()} tokens reused`, `${(read - reused).toLocaleString()} computed`];
  if (drafts > 1) parts[1] += ` for ${drafts} drafts`;
  if (first != null) parts.push(`first token ${time(first)}`);
  if (written > 1 && all > first) parts.push(`${Math.round(((written - 1) * 1000) / (all - first))} tokens/s`);
  return parts;
}

function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

class Editor extends Component {
  state = { isSaving: false };

  componentDidMount() {
    this.field.focus();
    this.field.setSelectionRange(this.field.value.length, this.field.value.length);
  }

  onKey = (event) => {
    if (event.key === "Escape") this.props.onClose();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.save();
  };

  save = async () => {
    const text = this.field.value.trim();
    if (!text || this.state.isSaving) return;
    this.setState({ isSaving: true });
    await this.props.onSave(text);
    this.setState({ isSaving: false });
  };

  render({ message, onClose }, { isSaving }) {
    const isOwn = message.role === "user";
    return html`
      <div class="editor">
        <textarea
          aria-label=${`Edit: ${NAMES[message.role]}`} rows=${Math.min(16, 2 + message.text.split("\n").length)} onKeyDown=${this.onKey}
          ref=${(field) => (this.field = field)} defaultValue=${message.text}
        ></textarea>
        <div class="buttons">
          <button class="main" aria-disabled=${isSaving} onClick=${this.save}>${isOwn ? "Send as a new branch" : "Keep as a new version"}</button>
          <button onClick=${onClose}>Cancel</button>
          <span class="soft small">What is there now stays as another version.</span>
        </div>
      </div>
    `;
  }
}
