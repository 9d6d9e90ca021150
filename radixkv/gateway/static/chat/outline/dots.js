// All messages as dots, small: an overview of how the branches part. Depth runs to the right, branches lie below each other.

import { coloursOf } from "../../colours.js";
import { Component, effect, html } from "../../vendor/htm-preact.js";
import * as view from "../conversation/view.js";
import { afterRender } from "../shared/motion.js";
import { beside } from "./actions.js";
import { runs } from "./state.js";

const MARGIN_PX = 6;
const STEP_PX = 10; // between two messages, where there is room
const colours = coloursOf(["line-strong", "accent"]);
const NEAR_PX = 24; // a click counts for the nearest message so far away

/** Where each message stands: `{id, column, lane, parent}`, the parent's place among them; and how many columns and lanes there are. O(messages). */
export function layOut(all) {
  const spots = [];
  let numColumns = 0;
  let numLanes = 0;
  const open = (all?.roots ?? []).toReversed().map((run) => ({ run, column: 0, parent: -1, lane: null }));
  while (open.length) {
    const { run, column, parent, lane } = open.pop();
    const own = lane ?? numLanes++;
    let last = parent;
    run.ids.forEach((id, at) => {
      spots.push({ id, column: column + at, lane: own, parent: last });
      last = spots.length - 1;
    });
    const next = column + run.ids.length;
    numColumns = Math.max(numColumns, next);
    for (let at = run.below.length - 1; at >= 0; at--) open.push({ run: run.below[at], column: next, parent: last, lane: at === 0 ? own : null });
  }
  return { spots, numColumns, numLanes };
}

/** The strip of dots. It is drawn again when messages come or go, another branch is shown, its size or the colours change. */
export class Dots extends Component {
  #runs = null; // that are laid out
  #laid = layOut(null);
  #isDue = false;
  #observer = new ResizeObserver(() => this.drawSoon());
  #stop = () => {};

  componentDidMount() {
    this.#observer.observe(this.canvas);
    this.#stop = effect(() => {
      view.conversation.value?.structure.value;
      view.tip.value;
      colours.value;
      this.drawSoon();
    });
  }

  componentWillUnmount() {
    this.#observer.disconnect();
    this.#stop();
  }

  drawSoon = () => {
    if (this.#isDue) return;
    this.#isDue = true;
    afterRender(() => {
      this.#isDue = false;
      if (this.canvas?.isConnected) this.draw();
    });
  };

  /** A function of a spot: where it stands, in pixels. */
  places() {
    const { clientWidth, clientHeight } = this.canvas;
    const { numColumns, numLanes } = this.#laid;
    const step = (room, number) => Math.min(STEP_PX, (room - 2 * MARGIN_PX) / Math.max(1, number - 1));
    const [across, down] = [step(clientWidth, numColumns), step(clientHeight, numLanes)];
    return ({ column, lane }) => ({ x: MARGIN_PX + column * across, y: MARGIN_PX + lane * down });
  }

  draw() {
    if (this.#runs !== runs.peek()) this.#laid = layOut(runs.peek());
    this.#runs = runs.peek();
    const { canvas } = this;
    const scale = devicePixelRatio;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const shown = new Set(view.shownBranch().map((message) => message.id));
    const tip = view.tip.peek();
    const { spots } = this.#laid;
    const places = spots.map(this.places());
    const weak = { lines: new Path2D(), dots: new Path2D(), colour: colours.peek()["line-strong"], width_px: 0.6 };
    const strong = { lines: new Path2D(), dots: new Path2D(), colour: colours.peek().accent, width_px: 1.6 };
    spots.forEach(({ id, parent }, at) => {
      const { x, y } = places[at];
      const { lines, dots } = shown.has(id) ? strong : weak;
      if (parent >= 0) {
        lines.moveTo(places[parent].x, places[parent].y);
        lines.lineTo(x, y);
      }
      const half = id === tip ? 3.5 : shown.has(id) ? 2.2 : 1.5;
      dots.rect(x - half, y - half, 2 * half, 2 * half);
    });
    for (const { lines, dots, colour, width_px } of [weak, strong]) {
      context.fillStyle = context.strokeStyle = colour;
      context.lineWidth = width_px;
      context.stroke(lines);
      context.fill(dots);
    }
  }

  onClick = (event) => {
    let nearest = null;
    let least = NEAR_PX ** 2;
    const placeOf = this.places();
    for (const spot of this.#laid.spots) {
      const { x, y } = placeOf(spot);
      const distance = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (distance < least) [nearest, least] = [spot, distance];
    }
    if (nearest) (event.shiftKey ? beside : view.reveal)(nearest.id);
  };

  render() {
    return html`<canvas class="dots" role="img" aria-label="All messages as dots; the outline below says the same" ref=${(element) => (this.canvas = element)}
      onClick=${this.onClick}></canvas>`;
  }
}
