// Where one writes: the text is kept in this browser until the server has it.

import { Component, html, signal } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { isReachable } from "../../page.js";
import { send, stop } from "../conversation/actions.js";
import { characters, ending, excerpt, newId } from "../conversation/conversation.js";
import { keep, readSettings, settings } from "../conversation/settings.js";
import * as view from "../conversation/view.js";
import { textsOf } from "./files.js";
import { ContextMeter } from "./meter.js";
import { Settings } from "./settings_fields.js";

const KEPT = "radixkv.draft.";

/** What stands in the field. */
export const draft = signal("");

const place = () => view.followed.peek() ?? "new";

function write(text) {
  draft.value = text;
  keep(KEPT + place(), text);
}

/** Write something else into the field, and go there. */
export function writeInstead(text) {
  write(text);
  document.getElementById("composer-text")?.focus();
}

/** Add what text files say to the draft; what else they are is told. */
export async function addFiles(files) {
  const { texts, refused } = await textsOf(files);
  if (refused.length) view.notice.value = { text: refused.join(" ") };
  if (texts.length) writeInstead([draft.peek().trimEnd(), ...texts].filter(Boolean).join("\n\n"));
}

/** Edit the last message of one's own on the branch that is shown. */
function editLast() {
  const last = view.shownBranch().findLast(({ role }) => role === "user");
  const element = last && document.getElementById(last.id);
  if (!element) return;
  element.focus();
  element.dispatchEvent(new KeyboardEvent("keydown", { key: "e", bubbles: true, cancelable: true })); // as if it were pressed there
}

/** Nothing is sent while what it would go on from is still being written. */
export class Composer extends Component {
  state = { error: null, isSending: false, showsSettings: false };
  #id = newId(); // of the message: sent again with the same one it is stored once
  #isSending = false; // known at once, unlike the state
  #fitted = ""; // the text that the field is as high as

  componentDidMount() {
    this.ends = view.followed.subscribe(() => this.restore());
  }

  componentWillUnmount() {
    this.ends();
  }

  componentDidUpdate() {
    if (!this.field || this.#fitted === draft.peek()) return;
    this.#fitted = draft.peek();
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight + 2, window.innerHeight * 0.4)}px`;
  }

  restore() {
    this.#id = newId();
    draft.value = localStorage.getItem(KEPT + place()) ?? "";
    this.setState({ error: null });
  }

  submit = async (event) => {
    event.preventDefault();
    const text = draft.peek();
    if (!text.trim() || this.#isSending || this.isWaiting()) return;
    const from = place();
    this.#isSending = true;
    this.setState({ isSending: true, error: null });
    try {
      await send({ id: this.#id, text, settings: readSettings() });
      keep(KEPT + from, "");
      this.#id = newId();
      const now = draft.peek();
      if (place() === from) write(now.startsWith(text) ? now.slice(text.length) : now);
    } catch (error) {
      this.setState({ error });
    }
    this.#isSending = false;
    this.setState({ isSending: false });
    this.field?.focus();
  };

  /** The message that the next one goes below: the last one in sight. */
  above() {
    const shown = view.conversation.value;
    return shown?.shape.value ? shown.get(view.branching.value?.from ?? view.tip.value) : undefined;
  }

  isWaiting() {
    return this.above()?.status === "running" && !view.branching.value?.at;
  }

  onKey = (event) => {
    const isEnter = event.key === "Enter" && !event.isComposing;
    const sends = event.ctrlKey || event.metaKey || (!event.shiftKey && matchMedia("(hover: hover)").matches);
    if (isEnter && sends) {
      event.preventDefault();
      this.form.requestSubmit(); // which looks at the fields of the settings too
    }
    if (event.key === "Escape") view.branching.value = null;
    if (event.key === "ArrowUp" && !draft.peek()) {
      event.preventDefault();
      editLast();
    }
  };

  onPaste = (event) => {
    if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    addFiles(event.clipboardData.files);
  };

  render(_, { error, isSending, showsSettings }) {
    const last = this.above();
    const { n } = readSettings();
    const { temperature } = settings.value;
    const chosen = `${n > 1 ? `${n} drafts` : "1 reply"}${temperature == null ? "" : `, temperature ${temperature}`}`;
    return html`
      <form class="composer" onSubmit=${this.submit} ref=${(form) => (this.form = form)}>
        ${error && html`<${NotSent} error=${error} />`}
        <${Branching} />
        <label class="hidden-text" for="composer-text">Message</label>
        <textarea
          id="composer-text" rows="1" value=${draft.value} placeholder="Write a message" onInput=${(event) => write(event.target.value)}
          onKeyDown=${this.onKey} onPaste=${this.onPaste} ref=${(field) => (this.field = field)}
        ></textarea>
        <div class="composer-foot">
          <button type="button" class="bare small" aria-expanded=${showsSettings} aria-controls="settings"
            onClick=${() => this.setState({ showsSettings: !showsSettings })}><span>${chosen}</span><${Icon} name="chevron-down" /></button>
          <${ContextMeter} draft=${draft} />
          <span class="spring"></span>
          ${last?.status === "running" && html`<button type="button" onClick=${() => stop(last)}><${Icon} name="square" />Stop</button>`}
          <button class="main" disabled=${!draft.value.trim() || isSending || this.isWaiting()}>${isSending ? "Sending" : "Send"}</button>
        </div>
        ${showsSettings && html`<${Settings} />`}
      </form>
    `;
  }
}

/** Why the message has not been sent, and how to try again. */
function NotSent({ error }) {
  const why = error.status !== 0 ? error.message : isReachable.value ? "" : `${error.message} `;
  return html`<p class="notice danger" role="alert">${why}${error.status === 0 && "This was not sent."} <button type="submit">Send again</button></p>`;
}

/** What the next message goes below, where that is not the end of the branch. */
function Branching() {
  const branching = view.branching.value;
  const from = branching && view.conversation.value?.get(branching.from);
  if (!from) return null;
  const { at } = branching;
  const above = at ? ending(characters(from.text).slice(0, at).join("")) : excerpt(from.text);
  return html`<p class="branching small">
    <span>A new branch below “${above}”</span>
    <button type="button" class="bare icon-button" onClick=${() => (view.branching.value = null)} aria-label="Go on at the end instead"><${Icon} name="x" /></button>
  </p>`;
}
