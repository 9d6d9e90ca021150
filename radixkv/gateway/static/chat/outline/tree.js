// The rows of the outline, of which those in sight are there.

import { Component, effect, html, signal } from "../../vendor/htm-preact.js";
import * as view from "../conversation/view.js";
import { afterRender } from "../shared/motion.js";
import { prune, star, name, beside } from "./actions.js";
import { wantCosts, wantNone } from "./costs.js";
import { ROW_PX, Row, elementId } from "./row.js";
import { RowMenu } from "./row_menu.js";
import { active, activePlace, seen, turn } from "./state.js";

const FURTHER = 6; // rows above and below those in sight
const KEYS = "Enter shows a branch, c beside the one shown, s stars it, F2 names it, Delete prunes it, Control Z brings it back.";

/**
 * A tree of rows. Keys: up and down, Home and End go from row to row, right and left unfold and fold, Enter shows a branch, c shows
 * it beside, * or s gives a star, F2 a name, Delete throws away, Ctrl+Z brings back; the menu key has the rest.
 */
export class OutlineTree extends Component {
  /** The first row in sight, and how many there is room for. */
  window = signal({ from: 0, number: 30 });
  menu = signal(null);
  #observer = new ResizeObserver(() => this.look());
  #stop = () => {};

  componentDidMount() {
    this.#observer.observe(this.element);
    this.#stop = effect(() => {
      view.tip.value;
      afterRender(() => this.bringIntoSight(seen.peek()?.placeOf(view.tip.peek())));
    });
    wantCosts(this.inSight);
  }

  componentDidUpdate() {
    wantCosts(this.inSight);
  }

  componentWillUnmount() {
    this.#observer.disconnect();
    this.#stop();
    wantNone();
  }

  /** The messages with which the branches in sight end; none where the outline is not. */
  inSight = () => {
    if (!this.element?.checkVisibility({ visibilityProperty: true })) return [];
    const { from, number } = this.window.peek();
    const rows = Array.from({ length: number }, (_, at) => seen.peek()?.at(from + at));
    return [...new Set(rows.filter(Boolean).map((row) => row.end))];
  };

  look = () => {
    const { scrollTop, clientHeight } = this.element;
    const next = { from: Math.floor(scrollTop / ROW_PX), number: Math.ceil(clientHeight / ROW_PX) + 1 };
    const { from, number } = this.window.peek();
    if (next.from !== from || next.number !== number) this.window.value = next;
  };

  bringIntoSight(place) {
    if (!this.element?.isConnected || place === undefined || place < 0) return;
    const { scrollTop, clientHeight } = this.element;
    const top = place * ROW_PX;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + ROW_PX > scrollTop + clientHeight) this.element.scrollTop = top + ROW_PX - clientHeight;
  }

  go(place) {
    const row = seen.peek().at(place);
    if (!row) return;
    active.value = row.key;
    this.bringIntoSight(place);
  }

  openMenu = (key, button) => {
    active.value = key;
    this.menu.value = { row: seen.peek().at(activePlace()), button };
  };

  onKey = (event) => {
    if (event.altKey || (event.ctrlKey || event.metaKey) !== (event.key === "z")) return;
    const place = activePlace();
    const action = this.doings(place, seen.peek().at(place))[event.key === "F10" && event.shiftKey ? "ContextMenu" : event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  };

  doings(place, row) {
    const message = view.conversation.peek().get(row.id);
    const starIt = () => star(message);
    const page = Math.max(1, this.window.peek().number - 2);
    const last = seen.peek().length - 1;
    return {
      ArrowUp: () => this.go(place - 1),
      ArrowDown: () => this.go(place + 1),
      PageUp: () => this.go(Math.max(0, place - page)),
      PageDown: () => this.go(Math.min(last, place + page)),
      Home: () => this.go(0),
      End: () => this.go(last),
      ArrowRight: () => (row.isOpen === false ? turn(row.key) : row.isOpen && this.go(place + 1)),
      ArrowLeft: () => (row.isOpen ? turn(row.key) : this.go(seen.peek().above(place))),
      Enter: () => view.reveal(row.id),
      " ": () => view.reveal(row.id),
      c: () => beside(row.id),
      "*": starIt,
      s: starIt,
      F2: () => name(message),
      Delete: row.kind === "rest" ? null : () => prune(message),
      ContextMenu: () => this.openMenu(row.key, document.getElementById(elementId(row.key)).querySelector(".row-menu")),
    };
  }

  render() {
    const rows = seen.value;
    const shown = view.conversation.value;
    const { from, number } = this.window.value;
    view.panel.value; // the outline comes into sight with it
    const first = Math.max(0, Math.min(from, rows.length - number) - FURTHER);
    const places = Array.from({ length: Math.min(number + 2 * FURTHER, rows.length - first) }, (_, at) => first + at);
    const at = activePlace();
    if (!places.includes(at)) places.push(at); // a reader is led to it
    const running = numRunning(rows, shown);
    const path = new Set(view.shownBranch().map((message) => rows.placeOf(message.id)));
    const current = rows.placeOf(view.tip.value);
    return html`
      <div class="outline-rows" role="tree" aria-label="Branches of this conversation" aria-description=${KEYS} tabindex="0"
        aria-activedescendant=${elementId(rows.at(at).key)}
        ref=${(element) => (this.element = element)} onKeyDown=${this.onKey} onScroll=${this.look}>
        <div class="outline-all" role="none" style=${{ height: `${rows.length * ROW_PX}px` }}>
          ${places.map((place) => {
            const row = rows.at(place);
            return html`<${Row} ...${row} key=${`${row.key} ${row.id}`} rowKey=${row.key} index=${place} cell=${shown.cell(row.id)}
              isActive=${place === at} isCurrent=${place === current}
              isShown=${path.has(place)} numRunning=${running.get(place) ?? 0} onMenu=${this.openMenu} />`;
          })}
        </div>
      </div>
      <${RowMenu} asked=${this.menu} onDone=${() => this.element?.focus({ preventScroll: true })} />
    `;
  }
}

/** How many replies are being written, by the row that shows or hides them. */
function numRunning(rows, shown) {
  shown.shape.value;
  const numbers = new Map();
  for (const id of shown.running) {
    const place = rows.placeOf(id);
    numbers.set(place, (numbers.get(place) ?? 0) + 1);
  }
  return numbers;
}
