// The drawing: depth in tokens across, on a square-root scale so that one long prompt leaves room for the rest; leaves down. What is too small to be told apart is drawn as one, so that a frame costs as
// much as the canvas has rows, however many nodes there are.

import { effect } from "../vendor/htm-preact.js";
import { TEXT_ROW_PX, outline, palette, paintBranch, paintNamespace, paintNode } from "./paint.js";

const AXIS_PX = 22;
const PAD_PX = 8;
const ROW_PX = 24;
const MAX_ROW_PX = 48;
const MAX_TOKEN_PX = 80;
const MIN_LABEL_PX = 34;
const TICK_PX = 76;
const ZOOM_STEP = 1.5;

export class Drawing {
  /** How long the last frames took to draw, in milliseconds. */
  frames_ms = [];
  width = 1;
  height = 1;
  /** What lies at the left and upper edge, and how large a root of a token and a row are. */
  #view = { root: 0, row: 0, root_px: 1, row_px: ROW_PX };
  #isFitted = true;
  #isDue = false;
  #pointers = new Map();
  #moved_px = 0;

  /**
   * `selected`, `found`, `tick`: signals. `onSelect(node)` when one is chosen by pointer; `onBare(nodes)` with those drawn without
   * the text that they have room for.
   */
  constructor(canvas, tree, { selected, found, tick, onSelect, onBare }) {
    this.canvas = canvas;
    this.tree = tree;
    this.selected = selected;
    this.found = found;
    this.onSelect = onSelect;
    this.onBare = onBare;
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.#resize()).observe(canvas);
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#lift(event));
    canvas.addEventListener("pointercancel", (event) => this.#pointers.delete(event.pointerId));
    this.#resize();
    effect(() => {
      tree.turn.value;
      this.#changed();
    });
    effect(() => {
      [selected.value, found.value, tick.value, palette()];
      this.draw();
    });
  }

  /** Draw with the next frame. */
  draw() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      const began_ms = performance.now();
      this.#paint();
      this.frames_ms.push(performance.now() - began_ms);
      if (this.frames_ms.length > 240) this.frames_ms.shift();
      if (this.tree.numGhosts) this.draw();
    });
  }

  /** The tree has changed, or its place. */
  #changed() {
    if (this.#isFitted) this.fit();
    else this.#bound();
    this.draw();
  }

  /** Show all of the tree, and go on doing so as it grows. */
  fit() {
    this.#isFitted = true;
    this.#view = { root: 0, row: 0, ...this.#fittest() };
    this.draw();
  }

  /** Zoom around the middle, or a point. */
  zoom(factor, x = this.width / 2, y = this.height / 2, { rows = true, depth = true } = {}) {
    const view = this.#view;
    const least = this.#fittest();
    const [root, row] = [this.#rootAt(x), this.#rowAt(y)];
    this.#isFitted = false;
    if (depth) view.root_px = Math.min(Math.max(view.root_px * factor, least.root_px), this.#most());
    if (rows) view.row_px = Math.min(Math.max(view.row_px * factor, least.row_px), MAX_ROW_PX);
    view.root = root - (x - PAD_PX) / view.root_px;
    view.row = row - (y - AXIS_PX) / view.row_px;
    this.#bound();
    this.draw();
  }

  /** Bring a node into view, large enough to be read. */
  show(node) {
    const view = this.#view;
    const box = this.#box(node);
    const isSmall = view.row_px < TEXT_ROW_PX || box.width < MIN_LABEL_PX;
    const isOutside = box.x + Math.min(box.width, 60) > this.width || box.x + box.width < 40;
    if (!isSmall && !isOutside && box.y >= AXIS_PX && box.y + Math.min(box.height, ROW_PX) <= this.height) return this.draw();
    this.#isFitted = false;
    if (view.row_px < TEXT_ROW_PX) view.row_px = ROW_PX;
    if (box.width < MIN_LABEL_PX) view.root_px = Math.min(this.#most(), Math.max(view.root_px, 160 / rootsOf(node)));
    view.row = node.row - (this.height - AXIS_PX) / view.row_px / 2 + 1;
    view.root = Math.sqrt(node.position) - (this.width * 0.3) / view.root_px;
    this.#bound();
    return this.draw();
  }

  #fittest() {
    return {
      root_px: (this.width - 2 * PAD_PX) / Math.sqrt(this.tree.maxDepth),
      row_px: Math.min(ROW_PX, (this.height - AXIS_PX - PAD_PX) / Math.max(1, this.tree.numRows)),
    };
  }

  /** Where the deepest token is as wide as one need be. */
  #most() {
    const { maxDepth } = this.tree;
    return MAX_TOKEN_PX / (Math.sqrt(maxDepth) - Math.sqrt(maxDepth - 1));
  }

  /** Keep some of the tree in view. */
  #bound() {
    const view = this.#view;
    const least = this.#fittest();
    view.root_px = Math.max(view.root_px, least.root_px);
    view.row_px = Math.max(view.row_px, least.row_px);
    const wide = (this.width - 2 * PAD_PX) / view.root_px;
    const high = (this.height - AXIS_PX) / view.row_px;
    view.root = Math.max(0, Math.min(view.root, Math.sqrt(this.tree.maxDepth) - wide));
    view.row = Math.max(0, Math.min(view.row, this.tree.numRows - high + 1));
  }

  #resize() {
    const { clientWidth, clientHeight } = this.canvas;
    const scale = devicePixelRatio || 1;
    [this.width, this.height] = [Math.max(1, clientWidth), Math.max(1, clientHeight)];
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.#changed();
  }

  #rootAt(x) {
    return this.#view.root + (x - PAD_PX) / this.#view.root_px;
  }

  #depthAt(x) {
    const root = this.#rootAt(x);
    return root < 0 ? -1 : root * root;
  }

  /** Where a depth in tokens lies across. */
  xOf(depth) {
    return PAD_PX + (Math.sqrt(depth) - this.#view.root) * this.#view.root_px;
  }

  #rowAt(y) {
    return this.#view.row + (y - AXIS_PX) / this.#view.row_px;
  }

  #box(node) {
    const { row, row_px } = this.#view;
    const gap = row_px > 6 ? 1 : 0;
    const x = this.xOf(node.position);
    return {
      x,
      y: AXIS_PX + (node.row - row) * row_px,
      width: Math.max(1.5, this.xOf(node.position + node.tokens) - x - gap),
      height: Math.max(1, node.rows * row_px - gap),
    };
  }

  // -- painting

  #paint() {
    const { context, width, height } = this;
    const now_s = this.tree.now_s();
    const bare = [];
    context.fillStyle = palette().ground;
    context.fillRect(0, 0, width, height);
    context.textBaseline = "middle";
    for (const space of this.tree.namespaces) {
      const y = AXIS_PX + (space.row - this.#view.row) * this.#view.row_px;
      if (y > height || y + space.rows * this.#view.row_px < AXIS_PX) continue;
      paintNamespace(context, space, { x: PAD_PX, y, height: this.#view.row_px });
      this.#paintAll(space.children, now_s, bare);
    }
    const selected = this.selected.value;
    if (selected && this.tree.nodes.has(selected.id)) this.#paintSelected(selected);
    this.#paintAxis();
    if (bare.length) this.onBare(bare);
  }

  #paintAll(top, now_s, bare) {
    const { width, height, context } = this;
    const pending = [{ nodes: top, index: 0, drawn_px: -1 }];
    while (pending.length) {
      const level = pending[pending.length - 1];
      if (level.index === level.nodes.length) {
        pending.pop();
        continue;
      }
      const node = level.nodes[level.index++];
      const box = this.#box(node);
      if (box.y > height) {
        pending.pop();
        continue;
      }
      if (box.y + box.height < AXIS_PX || box.x > width) continue;
      if (box.height < 2) {
        const pixel = Math.floor(box.y);
        if (pixel === level.drawn_px && !node.goneAt_ms) continue;
        level.drawn_px = pixel;
        box.width = this.xOf(node.below.end) - box.x;
        paintBranch(context, node, box, now_s);
        continue;
      }
      if (box.x + box.width >= 0) this.#paintOne(node, box, now_s, bare);
      if (node.children.length) pending.push({ nodes: node.children, index: 0, drawn_px: -1 });
    }
  }

  #paintOne(node, box, now_s, bare) {
    const found = this.found.value;
    const isFound = found?.has(node.id) ?? false;
    const shown = inView(box, this.width, this.height);
    paintNode(this.context, node, shown, now_s, { isFound, isDimmed: found !== null && !isFound });
    if (node.label === null && shown.height >= TEXT_ROW_PX && shown.width >= MIN_LABEL_PX) bare.push(node);
  }

  #paintSelected(node) {
    const box = inView(this.#box(node), this.width, this.height);
    if (box.width > 0 && box.height > 0) outline(this.context, box, palette().text, 2.5);
  }

  #paintAxis() {
    const { context, width } = this;
    const { raised, line, "text-soft": soft } = palette();
    context.fillStyle = raised;
    context.fillRect(0, 0, width, AXIS_PX - 2);
    context.fillStyle = line;
    context.fillRect(0, AXIS_PX - 3, width, 1);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = soft;
    for (let x = Math.max(0, this.xOf(0)); x < width - 30; ) {
      const step = niceStep(this.#depthAt(x + TICK_PX) - this.#depthAt(x));
      const depth = Math.ceil(this.#depthAt(x) / step) * step;
      x = this.xOf(depth);
      if (x > width - 30) break;
      context.fillRect(x, AXIS_PX - 7, 1, 5);
      const words = depth ? depth.toLocaleString("en") : "0 tokens, square-root scale";
      context.fillText(words, x + 4, (AXIS_PX - 3) / 2);
      x += Math.max(TICK_PX, context.measureText(words).width + 12);
    }
  }

  // -- pointers

  #wheel(event) {
    event.preventDefault();
    const factor = Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015));
    if (event.deltaX && Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.#pan(-event.deltaX, 0);
    const only = event.shiftKey ? { rows: false } : event.altKey ? { depth: false } : {};
    return this.zoom(factor, event.offsetX, event.offsetY, only);
  }

  #press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.#moved_px = this.#pointers.size > 1 ? Infinity : 0;
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.offsetX, y: event.offsetY };
    const others = [...this.#pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    this.#pointers.set(event.pointerId, now);
    this.#moved_px += Math.hypot(now.x - before.x, now.y - before.y);
    if (others.length) {
      const factor = distance(now, others[0]) / Math.max(1, distance(before, others[0]));
      this.zoom(factor, (now.x + others[0].x) / 2, (now.y + others[0].y) / 2);
    }
    if (this.#moved_px > 4) this.#pan((now.x - before.x) / (1 + others.length), (now.y - before.y) / (1 + others.length));
  }

  #lift(event) {
    this.#pointers.delete(event.pointerId);
    if (this.#moved_px <= 4) this.onSelect(this.tree.at(this.#depthAt(event.offsetX), this.#rowAt(event.offsetY)));
  }

  #pan(x, y) {
    this.#isFitted = false;
    this.#view.root -= x / this.#view.root_px;
    this.#view.row -= y / this.#view.row_px;
    this.#bound();
    this.draw();
  }
}

export { ZOOM_STEP };

/** The part of a box that lies in the canvas, so that its text begins there. */
function inView({ x, y, width, height }, canvasWidth, canvasHeight) {
  const [left, top] = [Math.max(x, -2), Math.max(y, AXIS_PX - 2)];
  return {
    x: left,
    y: top,
    width: Math.min(x + width, canvasWidth + 2) - left,
    height: Math.min(y + height, canvasHeight + 2) - top,
  };
}

/** How many roots of a token wide it is. */
function rootsOf({ position, tokens }) {
  return Math.sqrt(position + tokens) - Math.sqrt(position);
}

function distance(a, b) {
  return Math.hypot(a.x - b.x, a.y - b.y);
}

/** The next of 1, 2, 5, 10, 20 … that is at least so much. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}
