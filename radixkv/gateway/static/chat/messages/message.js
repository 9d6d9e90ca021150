// One message: what it says, its versions, what it cost, and what can be done with it.

import { Component, html } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import * as actions from "../conversation/actions.js";
import { NAMES, excerpt } from "../conversation/conversation.js";
import { costs } from "../conversation/counting.js";
import { compareVersions, focusNext, turn } from "../conversation/view.js";
import { prune } from "../outline/actions.js";
import { Menu } from "../shared/menu.js";
import { Markdown } from "../text/markdown.js";
import { chooseWord } from "../weaving/picking.js";
import { askAgain, waysAgain } from "./again.js";
import { Editor, isEdited } from "./editor.js";

const MOST_SHOWN = 12_000; // characters of a message of one's own, before it is asked for whole
const COPIED_MS = 1500;

/**
 * One message of a branch, which is `cell`'s value: the `place`-th of `count` versions. Shown again only when something of it
 * changes.
 *
 * Keys, while the message has the focus: left and right show its other versions, e edits, r regenerates, b branches, w chooses a
 * word of a reply, c compares.
 */
export class Message extends Component {
  state = { isEditing: false, isWhole: false };

  shouldComponentUpdate(next, state) {
    return state !== this.state || Object.keys(next).some((name) => next[name] !== this.props[name]);
  }

  edit = () => this.setState({ isEditing: true });

  close = () => {
    this.setState({ isEditing: false });
    this.element?.focus();
  };

  onKey = (event) => {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const message = this.props.cell.peek();
    const does = {
      ArrowLeft: () => turn(message, -1),
      ArrowRight: () => turn(message, 1),
      ArrowUp: () => focusNext(message, -1),
      ArrowDown: () => focusNext(message, 1),
      e: this.edit,
      r: message.role === "system" ? null : () => actions.regenerate(message),
      b: message.status === "running" && !message.text ? null : () => actions.branch(message),
      w: message.role === "assistant" ? () => chooseWord(message.id) : null,
      c: this.props.count > 1 ? () => compareVersions(message) : null,
    };
    const action = does[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };

  render({ cell, place, count, isTip, isStart, isLinked, isLeftOut }, { isEditing, isWhole }) {
    const message = cell.value;
    const { id, role, status } = message;
    const isLong = role !== "assistant" && message.text.length > MOST_SHOWN && !isWhole;
    const text = isLong ? message.text.slice(0, MOST_SHOWN) : message.text;
    const marks = [isStart && "start", isLinked && "linked"].filter(Boolean).join(" ");
    return html`
      <article
        id=${id} class=${`message ${role} ${status} ${marks}`} tabindex=${isTip ? 0 : -1} hidden=${isLeftOut}
        aria-label=${`${NAMES[role]}: ${excerpt(message.text, 80) || status}`} onKeyDown=${this.onKey} ref=${(element) => (this.element = element)}
      >
        <h2 class=${role === "system" ? "small soft" : "hidden-text"}>${NAMES[role]}</h2>
        ${isEditing
          ? html`<${Editor} message=${message} name=${NAMES[role]} onClose=${this.close} />`
          : html`<${Thinking} details=${message.details} />
              <${Content} role=${role} text=${text} />
              ${isLong && html`<button onClick=${() => this.setState({ isWhole: true }, () => this.element.focus())}>Show all ${message.text.length.toLocaleString()} characters</button>`}
              <${Outcome} message=${message} />`}
        <div class="foot">
          ${count > 1 && html`<${Versions} message=${message} place=${place} count=${count} />`}
          <${Cost} message=${message} />
          ${!isEditing && html`<${Actions} message=${message} count=${count} edit=${this.edit} />`}
        </div>
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

function Versions({ message, place, count }) {
  return html`
    <span class="versions" role="group" aria-label="Versions">
      <button class="bare icon-button" aria-label="Earlier version" disabled=${place === 0} onClick=${() => turn(message, -1)}><${Icon} name="chevron-left" /></button>
      <span class="numbers small">${place + 1} / ${count}</span>
      <button class="bare icon-button" aria-label="Later version" disabled=${place === count - 1} onClick=${() => turn(message, 1)}><${Icon} name="chevron-right" /></button>
      <${IconButton} icon="columns-2" name="Compare" title="All versions side by side" class="only-wide" act=${() => compareVersions(message)} />
    </span>
  `;
}

/** How a message came to its end, if that is worth a word, and how it goes on from there. */
function Outcome({ message }) {
  const { role, status, details, error, text } = message;
  const isReply = role === "assistant";
  if (isReply && status === "running") {
    return html`<p class="soft small writing">${text ? "writing" : details?.thinking ? "thinking" : "reading"}<span class="dots" aria-hidden="true"></span></p>`;
  }
  const goesOn = canGoOn(message) && html`<button class="small" title="Write on from the end of this reply, as a new version"
    onClick=${() => actions.goOn(message)}><${Icon} name="step-forward" />Continue</button>`;
  if (isReply && status === "failed") {
    return html`<p class="notice danger outcome"><span>${error ?? "This reply broke off."}</span>
      <button onClick=${() => actions.regenerate(message)}>Try again</button>${goesOn}</p>`;
  }
  const isCut = isReply && details?.finish_reason === "length";
  const words = [status === "stopped" && "Stopped.", isCut && "Cut at the longest length allowed.", details?.edited && "edited by hand"].filter(Boolean);
  return words.length ? html`<p class="soft small outcome"><span>${words.join(" ")}</span>${goesOn}</p>` : null;
}

/** Whether a reply may have more to say: it did not come to an end of its own. */
function canGoOn({ role, status, details, parent, text }) {
  if (role !== "assistant" || !parent || !text) return false;
  return status === "stopped" || status === "failed" || details?.finish_reason === "length" || Boolean(details?.edited);
}

function IconButton({ icon, name, title, act, isDisabled = false, class: more = "" }) {
  return html`<button class=${`bare icon-button ${more}`} aria-label=${name} title=${title} disabled=${isDisabled} onClick=${act}><${Icon} name=${icon} /></button>`;
}

function Actions({ message, count, edit }) {
  const { id, role, status, text } = message;
  const isOwn = role !== "assistant";
  const what = isOwn ? "message" : "reply";
  if (status === "running") {
    const title = "Go on from what is written so far; this reply goes on too";
    return html`
      <span class="actions">
        <${IconButton} icon="git-branch" name="Branch" title=${title} isDisabled=${!text} act=${() => actions.branch(message)} />
        <${IconButton} icon="square" name="Stop" title="Stop this reply" act=${() => actions.stop(message)} />
      </span>
    `;
  }
  const items = [
    { name: "Copy text", icon: "copy", act: () => actions.copy(message) },
    { name: "Copy link", icon: "link", act: () => actions.copyLink(message) },
    !isOwn && { name: "Choose a word", icon: "step-forward", act: () => chooseWord(id) },
    !isOwn && { name: "Again with other settings", icon: "sliders-horizontal", act: () => askAgain(message) },
    count > 1 && { name: "Compare all versions", icon: "columns-2", act: () => compareVersions(message) },
    { name: `Delete this ${what} and what follows it`, icon: "trash", act: () => prune(message), isDanger: true },
  ];
  return html`
    <span class="actions">
      <${Copy} message=${message} title=${`Copy the ${what}'s text`} />
      <${IconButton} icon="pencil" name="Edit" title=${isEdited(id) ? "Go on with your edit" : "Edit: a new version beside this one"} act=${edit} />
      ${role !== "system" &&
      html`<${IconButton} icon="refresh-cw" name=${isOwn ? "Reply again" : "Regenerate"} title="A further reply beside those there are"
        act=${() => actions.regenerate(message)} />`}
      ${!isOwn && html`<${Menu} id=${`again-${id}`} label="Again with…" icon="chevron-down" class="only-wide" items=${() => waysAgain(message)} />`}
      <${IconButton} icon="git-branch" name="Branch" title="Branch: go on from here, beside what follows now" act=${() => actions.branch(message)} />
      <${Menu} id=${`menu-${id}`} label="Other actions" items=${items} />
    </span>
  `;
}

/** Copies the text, and shows for a moment that it has. */
class Copy extends Component {
  state = { isCopied: false };

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  copy = async () => {
    if (!(await actions.copy(this.props.message))) return;
    clearTimeout(this.timer);
    this.setState({ isCopied: true });
    this.timer = setTimeout(() => this.setState({ isCopied: false }), COPIED_MS);
  };

  render({ title }, { isCopied }) {
    return html`<button class="bare icon-button only-wide" aria-label=${isCopied ? "Copied" : "Copy"} title=${title} onClick=${this.copy}>
      <${Icon} name=${isCopied ? "check" : "copy"} />${isCopied && html`<span class="small">Copied</span>`}
    </button>`;
  }
}

/** Tokens reused and computed, and how soon the reply began. */
function Cost({ message }) {
  const parts = costs(message.details);
  if (!parts.length) return null;
  const { prompt_tokens: read, cached_tokens: reused } = message.details;
  const share = `${Math.round((100 * reused) / Math.max(1, read))}%`;
  return html`
    <span class="cost small soft numbers" title=${[...parts, drawn(message.details)].filter(Boolean).join(" · ")}>
      <span class="share" title=${`${share} of the prompt was reused`} aria-hidden="true"><span style=${{ width: share }}></span></span>
      <span>${parts.join(" · ")}</span>
    </span>
  `;
}

/** How a reply was drawn, in words: what "the same again" takes. */
function drawn({ settings }) {
  const told = Object.entries(settings ?? {}).filter(([, value]) => value != null && value !== "" && value.length !== 0);
  return told.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
}
