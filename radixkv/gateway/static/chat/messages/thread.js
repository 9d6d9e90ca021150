// The branch that is shown, message by message. Its end stays in sight while it grows, unless one has scrolled away from it.

import { Component, html, signal } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import * as view from "../conversation/view.js";
import { takeRoomBack } from "../shared/motion.js";
import { Picker } from "../weaving/picker.js";
import { AddInstructions } from "./add_instructions.js";
import { Message } from "./message.js";
import { Start } from "./start.js";

const NEAR_END_PX = 120;

export class Thread extends Component {
  isFar = signal(false);
  #observer = new ResizeObserver(() => this.keepAtEnd());
  #tip = null;
  #top = 0; // how far it was scrolled last

  watch = (content) => {
    this.#observer.disconnect();
    if (!content) return;
    this.#observer.observe(content);
    this.#observer.observe(content.parentElement);
  };

  keepAtEnd() {
    if (!this.element) return;
    if (view.isAtEnd.peek()) this.element.scrollTop = this.element.scrollHeight;
    this.#top = this.element.scrollTop;
    this.isFar.value = this.toEnd_px() >= NEAR_END_PX;
  }

  toEnd_px() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    return scrollHeight - scrollTop - clientHeight;
  }

  componentDidUpdate() {
    if (this.element && this.#tip !== view.tip.peek()) takeRoomBack(this.element.firstElementChild);
    this.#tip = view.tip.peek();
    requestAnimationFrame(() => this.keepAtEnd()); // where it is laid out anyway
  }

  onScroll = () => {
    if (!this.element) return; // a scroll may be told after the thread has gone
    const { scrollTop } = this.element;
    this.isFar.value = this.toEnd_px() >= NEAR_END_PX;
    if (!this.isFar.peek()) view.isAtEnd.value = true;
    else if (scrollTop < this.#top) view.isAtEnd.value = false; // what has only grown is still at its end
    this.#top = scrollTop;
  };

  render() {
    const shown = view.conversation.value;
    if (!shown?.shape.value || shown.isEmpty) return html`<${Start} isNew=${!view.followed.value} />`;
    const path = view.shownBranch();
    const from = view.branching.value?.from;
    const last = from ? path.findIndex((message) => message.id === from) : path.length - 1;
    const numLeftOut = path.length - 1 - last;
    return html`
      <div class="thread" ref=${(element) => (this.element = element)} onScroll=${this.onScroll}>
        <div ref=${this.watch}>
          ${path[0]?.role !== "system" && html`<${AddInstructions} key=${shown.info.id} id=${shown.info.id} />`}
          ${path.map((message, index) => {
            const siblings = shown.siblings(message);
            const place = siblings.findIndex((one) => one.id === message.id);
            return html`<${Message} key=${message.id} cell=${shown.cell(message.id)} place=${place} count=${siblings.length}
              isTip=${message.id === view.tip.value} isStart=${message.id === from} isLinked=${message.id === view.linked.value}
              isLeftOut=${index > last} />`;
          })}
          ${numLeftOut > 0 && html`<p class="soft small left-out">${numLeftOut === 1 ? "One message" : `${numLeftOut} messages`} below stay
            in the branch that is there; the new one goes on without them.</p>`}
        </div>
      </div>
      <${Picker} />
      <${ToEnd} isFar=${this.isFar} onGo=${() => this.element?.scrollTo({ top: this.element.scrollHeight })} />
    `;
  }
}

function ToEnd({ isFar, onGo }) {
  if (!isFar.value) return null;
  return html`<div class="to-end"><button class="icon-button" aria-label="To the end" title="To the end" onClick=${onGo}><${Icon} name="arrow-down" /></button></div>`;
}
