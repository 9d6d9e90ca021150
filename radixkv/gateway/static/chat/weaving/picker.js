// What can be done at a place that is picked in a reply: go on from there, with other words, with words of one's own, with a question.

import { Component, html } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { attempt, goOn } from "../conversation/actions.js";
import { ending } from "../conversation/conversation.js";
import * as view from "../conversation/view.js";
import { Alternatives } from "./alternatives.js";
import { pickAt, pickNext, pickNothing, picked, pickedMessage, placePicked, textOf, watchSelection } from "./picking.js";
import { Writing } from "./writing.js";

const GAP_PX = 8;
const isDocked = matchMedia("(hover: none), (max-width: 520px)"); // where it stands at the lower edge of the screen

/** `part`: what of it is open, with the `place` that was picked. */
export class Picker extends Component {
  state = { part: null, place: null };

  componentDidMount() {
    this.endSelection = watchSelection();
    addEventListener("keydown", this.onKeyAnywhere);
    addEventListener("resize", this.stand);
    document.addEventListener("scroll", this.stand, true);
    document.addEventListener("click", this.onClickAnywhere);
    this.endPicked = picked.subscribe(() => this.setState({ part: null, place: null }));
  }

  componentWillUnmount() {
    this.endSelection();
    this.endPicked();
    removeEventListener("keydown", this.onKeyAnywhere);
    removeEventListener("resize", this.stand);
    document.removeEventListener("scroll", this.stand, true);
    document.removeEventListener("click", this.onClickAnywhere);
    picked.value = null;
  }

  componentDidUpdate() {
    this.stand();
  }

  show = (element) => {
    this.element = element;
    element?.showPopover();
  };

  /** Stand below what is picked, or above it where there is no room. */
  stand = () => {
    if (!this.element || !picked.peek()) return;
    const { style, offsetWidth: width, offsetHeight: height } = this.element;
    const { left, top, bottom } = picked.peek().range.getBoundingClientRect();
    const isBelow = bottom + GAP_PX + height < innerHeight || top < height + GAP_PX;
    const at_px = Math.max(GAP_PX, Math.min(isBelow ? bottom + GAP_PX : top - GAP_PX - height, innerHeight - height - GAP_PX));
    style.top = isDocked.matches ? "" : `${at_px}px`;
    style.left = isDocked.matches ? "" : `${Math.max(GAP_PX, Math.min(left, innerWidth - width - GAP_PX))}px`;
  };

  leave = () => {
    const { id } = picked.peek();
    pickNothing();
    document.getElementById(id)?.focus({ preventScroll: true });
  };

  onKeyAnywhere = (event) => {
    if (event.key !== "Escape" || !picked.peek()) return;
    event.preventDefault();
    if (this.state.part) this.setState({ part: null }, () => this.element.querySelector("[role=slider]").focus());
    else this.leave();
  };

  onClickAnywhere = (event) => {
    const { target, clientX, clientY } = event;
    const isOnButton = event.composedPath().some((one) => one instanceof Element && one.matches(".picker, .menu-items")); // it may be gone by now
    if (!picked.peek() || picked.peek().isSelected || isOnButton) return;
    if (textOf(picked.peek().id)?.contains(target)) pickAt(clientX, clientY);
    else if (this.state.part !== "writing") pickNothing();
  };

  onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("textarea")) return;
    const act = { g: this.goOn, a: this.alternatives, w: this.write, b: this.ask }[event.key];
    if (act) act();
    else if (!event.target.matches("[role=slider]") || !pickNext(event.key)) return;
    event.preventDefault();
  };

  /** The selection stays while a button is pressed. */
  onMouseDown = (event) => {
    if (!event.target.matches("textarea")) event.preventDefault();
  };

  open = (part) => attempt(async () => this.setState({ place: await placePicked(), part }));
  alternatives = () => this.open("alternatives");
  write = () => this.open("writing");

  goOn = () =>
    attempt(async () => {
      const { end } = await placePicked();
      const message = pickedMessage();
      pickNothing();
      await goOn(message, { position: end });
    });

  ask = () =>
    attempt(async () => {
      const { end } = await placePicked();
      const { id } = pickedMessage();
      pickNothing();
      view.branchFrom({ id }, end);
    });

  render(_, { part, place }) {
    if (!picked.value) return null;
    const { id, range } = picked.value;
    const text = textOf(id);
    if (!text) return null; // it is being edited
    return html`
      <div class="picker" popover="manual" role="group" aria-label="At this place of the reply" ref=${this.show} onKeyDown=${this.onKey} onMouseDown=${this.onMouseDown}>
        <${Words} range=${range} text=${text} onLeave=${this.leave} />
        ${part === "alternatives" && html`<${Alternatives} message=${pickedMessage()} place=${place} words=${range.toString().trim()} />`}
        ${part === "writing" && html`<${Writing} message=${pickedMessage()} place=${place} />`}
        ${!part &&
        html`<div class="choices">
          <button class="main" onClick=${this.goOn} title="A further reply that begins with the text up to here (g)"><${Icon} name="step-forward" />Go on from here</button>
          <button onClick=${this.alternatives} title="What else the model might have said here (a)"><${Icon} name="git-fork" />Other words</button>
          <button onClick=${this.write} title="A further reply that begins with the text up to here and yours (w)"><${Icon} name="pencil" />Write on myself</button>
          <button onClick=${this.ask} title="A message of yours, to the text up to here (b)"><${Icon} name="git-branch" />Ask from here</button>
        </div>`}
      </div>
    `;
  }
}

/** The text up to what is picked, and the means to pick another word. */
function Words({ range, text, onLeave }) {
  const before = document.createRange();
  before.setStart(text, 0);
  before.setEnd(range.startContainer, range.startOffset);
  const words = range.toString().trim();
  const button = (key, name, icon) =>
    html`<button class="bare icon-button" tabindex="-1" aria-label=${name} title=${name} onClick=${() => pickNext(key)}><${Icon} name=${icon} /></button>`;
  return html`
    <div class="picker-words small">
      ${button("ArrowLeft", "Previous word", "chevron-left")}
      <span role="slider" tabindex="0" aria-label="Word" aria-valuenow=${before.toString().length} aria-valuemin="0"
        aria-valuemax=${text.textContent.length} aria-valuetext=${words} title="Arrow keys choose a word"
        ><span class="soft before" dir="auto">${ending(before.toString(), 30)}</span><strong dir="auto">${ending(words, 40)}</strong></span>
      ${button("ArrowRight", "Next word", "chevron-right")}
      <button class="bare icon-button" aria-label="Close" onClick=${onLeave}><${Icon} name="x" /></button>
    </div>
  `;
}
