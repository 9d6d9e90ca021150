// The whole conversation as a small tree: every message a dot, the branch that is shown drawn strong.
//
//   depth runs down, branches lie side by side; a parent stands over its first child

import { Component, html } from "../vendor/htm-preact.js";
import { excerpt } from "./conversation.js";
import * as view from "./view.js";

const STEP = 22;
const MARGIN = 14;
const NAMES = { system: "Instructions", user: "You", assistant: "Reply" };

/** Where each message stands: a map from id to {message, x, y}, and the size of the whole. O(messages), without recursion. */
export function layOut(tree) {
  const spots = new Map();
  let column = -1;
  let depth = 0;
  const open = [...tree.children(null)].reverse().map((message) => ({ message, level: 0, isFirst: false }));
  while (open.length) {
    const { message, level, isFirst } = open.pop();
    if (!isFirst) column += 1;
    depth = Math.max(depth, level);
    spots.set(message.id, { message, level, x: MARGIN + column * STEP, y: MARGIN + level * STEP });
    const below = tree.children(message.id);
    for (let index = below.length - 1; index >= 0; index--) {
      open.push({ message: below[index], level: level + 1, isFirst: index === 0 });
    }
  }
  return { spots, width: 2 * MARGIN + Math.max(0, column) * STEP, height: 2 * MARGIN + depth * STEP };
}

const beside = (id) => view.compare([view.tip.peek(), view.conversation.peek().tip(id)]);

/** The map: a click shows a branch; with Shift, or with c, it stands beside the one that is shown. */
export class Minimap extends Component {
  state = { focused: null };

  componentDidMount() {
    this.keepInSight();
  }

  componentDidUpdate() {
    if (this.tip !== view.tip.peek()) this.keepInSight();
  }

  /** The end of the branch that is shown stays in sight. */
  keepInSight() {
    this.tip = view.tip.peek();
    const spot = this.element.querySelector(".tip")?.getBoundingClientRect();
    if (!spot) return;
    const box = this.element.getBoundingClientRect();
    if (spot.bottom > box.bottom || spot.top < box.top) this.element.scrollTop += spot.top - box.top - box.height / 2;
    if (spot.right > box.right || spot.left < box.left) this.element.scrollLeft += spot.left - box.left - box.width / 2;
  }

  onKey = (event) => {
    const shown = view.conversation.peek();
    const at = shown.get(this.state.focused ?? view.tip.peek());
    if (!at) return;
    const siblings = shown.siblings(at);
    const place = siblings.findIndex((one) => one.id === at.id);
    const next = {
      ArrowUp: shown.get(at.parent),
      ArrowDown: shown.children(at.id)[0],
      ArrowLeft: siblings[place - 1],
      ArrowRight: siblings[place + 1],
    };
    if (event.key in next) {
      event.preventDefault();
      if (next[event.key]) this.setState({ focused: next[event.key].id }, () => this.element.querySelector('[tabindex="0"]')?.focus());
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      view.reveal(at.id);
    } else if (event.key === "c") {
      beside(at.id);
    }
  };

  render(_, { focused }) {
    view.conversation.value.shape.value; // what is drawn changes with it
    const tip = view.tip.value;
    const { spots, width, height } = layOut(view.conversation.value);
    const shown = new Set(view.shownBranch().map((message) => message.id));
    const stop = spots.has(focused) ? focused : tip;
    const edges = { weak: [], strong: [] };
    for (const { message, x, y } of spots.values()) {
      const from = spots.get(message.parent);
      if (!from) continue;
      const bend = from.x === x ? `V${y}` : `C${from.x} ${y - 6} ${x} ${from.y + 6} ${x} ${y}`;
      edges[shown.has(message.id) ? "strong" : "weak"].push(`M${from.x} ${from.y}${bend}`);
    }
    return html`
      <div class="minimap" ref=${(element) => (this.element = element)}>
        <svg role="tree" aria-label="All branches of this conversation" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} onKeyDown=${this.onKey}>
          <path class="edge" role="presentation" d=${edges.weak.join("")} />
          <path class="edge strong" role="presentation" d=${edges.strong.join("")} />
          ${[...spots.values()].map(
            ({ message, level, x, y }) => html`
              <g
                key=${message.id} role="treeitem" aria-level=${level + 1} aria-selected=${shown.has(message.id)} tabindex=${message.id === stop ? 0 : -1}
                aria-label=${`${NAMES[message.role]}: ${excerpt(message.text, 50) || message.status}`}
                class=${`spot ${message.role} ${message.status} ${shown.has(message.id) ? "shown" : ""} ${message.id === tip ? "tip" : ""}`}
                transform=${`translate(${x} ${y})`} onFocus=${() => this.setState({ focused: message.id })}
                onClick=${(event) => (event.shiftKey ? beside(message.id) : view.reveal(message.id))}
              >
                <title>${excerpt(message.text, 120)}</title>
                <circle class="hit" r="11" />
                ${message.role === "assistant" ? html`<circle class="dot" r="5" />` : html`<rect class="dot" x="-4.5" y="-4.5" width="9" height="9" rx="2" />`}
              </g>
            `,
          )}
        </svg>
      </div>
    `;
  }
}
