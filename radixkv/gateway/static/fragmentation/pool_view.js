// Draws the slots of a pool: tokens that one request brought first have one hue, what is empty is hatched.

import { coloursOf } from "../colours.js";
import { computed } from "../vendor/htm-preact.js";
import { CACHED, EXTERNAL, FREE, INTERNAL, RESERVED, SHARED, USED } from "./slots.js";

const NUM_HUES = 12;
const HUE_STRIDE = 5; // requests that follow each other are told apart

const SMALLEST_CELL = 3; // device pixels; below it a slot is one pixel of a picture that is scaled
const SMALLEST_GRID = 5;
const TALLNESS = 0.82;
const FAINT = 0.3;
const HALF = 0.5;
const DIMMED = 0.25;

const HUES = Array.from({ length: NUM_HUES }, (_, hue) => `hue-${hue}`);
const colours = coloursOf([...HUES, "sunken", "text", "reserved", "internal", "external"]);

/** The colours of the page as it stands, light or dark, and what is hatched with them. */
export const palette = computed(() => {
  const { sunken: ground, text: mark, reserved, internal, external, ...hues } = colours.value;
  return {
    hues: HUES.map((name) => hues[name]),
    ground,
    mark,
    [RESERVED]: hatch(reserved, ground, false),
    [INTERNAL]: hatch(internal, ground, false, 3),
    [EXTERNAL]: hatch(external, ground, true),
    flat: { [RESERVED]: reserved, [INTERNAL]: internal, [EXTERNAL]: external },
  };
});

function hatch(colour, ground, isCrossed, step = 6) {
  const size = 12;
  const tile = new OffscreenCanvas(size, size);
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = colour;
  pen.lineWidth = 1.4;
  for (let at = -size; at <= 2 * size; at += step) {
    pen.beginPath();
    pen.moveTo(at, size);
    pen.lineTo(at + size, 0);
    if (isCrossed) {
      pen.moveTo(at, 0);
      pen.lineTo(at + size, size);
    }
    pen.stroke();
  }
  return tile;
}

/** How many slots stand in a row: whole blocks, so that the picture is a little wider than tall. */
export function columnsOf(numSlots, blockSize) {
  const unit = Math.max(blockSize, 16);
  return Math.max(1, Math.round(Math.sqrt(numSlots / TALLNESS) / unit)) * unit;
}

/** A pool on a canvas. */
export class PoolView {
  constructor(canvas) {
    this.canvas = canvas;
    this.columns = 1;
    this.cell = 1;
  }

  /** `slots`: as they were looked at. `followed`: 1 for every slot to bring out, or null. */
  draw(slots, { blockSize, palette, followed }) {
    const numSlots = slots.states.length;
    this.columns = columnsOf(numSlots, blockSize);
    const numRows = Math.ceil(numSlots / this.columns);
    const width = Math.round(this.canvas.clientWidth * devicePixelRatio);
    if (!width) return;
    this.cell = width / this.columns;
    const height = Math.round(this.cell * numRows);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const pen = this.canvas.getContext("2d");
    pen.globalAlpha = 1;
    pen.fillStyle = palette.ground;
    pen.fillRect(0, 0, width, height);
    const styleOf = (slot) => this.styleOf(slots, slot, followed);
    if (this.cell >= SMALLEST_CELL) this.drawRuns(pen, slots, palette, styleOf, blockSize);
    else this.drawPicture(pen, slots, palette, styleOf, numRows);
  }

  /** Neighbours of one style are drawn as one: state, hue, whether it is brought out. */
  styleOf(slots, slot, followed) {
    const state = slots.states[slot];
    const owner = state === USED || state === SHARED || state === CACHED ? slots.ownerOf(slot) : null;
    const hue = owner === null ? 0 : (owner * HUE_STRIDE) % NUM_HUES;
    return state | (hue << 4) | (followed && !followed[slot] ? 256 : 0);
  }

  drawRuns(pen, slots, palette, styleOf, blockSize) {
    const numSlots = slots.states.length;
    const edge = (column) => Math.round(column * this.cell);
    for (let slot = 0; slot < numSlots; ) {
      const style = styleOf(slot);
      const rowEnd = Math.min(numSlots, slot - (slot % this.columns) + this.columns);
      let end = slot + 1;
      while (end < rowEnd && styleOf(end) === style) end += 1;
      if ((style & 15) !== FREE) {
        const row = Math.floor(slot / this.columns);
        const left = edge(slot % this.columns);
        const right = edge(((end - 1) % this.columns) + 1);
        this.drawRun(pen, palette, style, left, edge(row), right - left, edge(row + 1) - edge(row));
      }
      slot = end;
    }
    this.drawGrid(pen, palette, blockSize);
  }

  drawRun(pen, palette, style, x, y, width, height) {
    const state = style & 15;
    const isFilled = state === USED || state === SHARED || state === CACHED;
    pen.globalAlpha = (style & 256 ? DIMMED : 1) * (state === CACHED ? FAINT : 1);
    pen.fillStyle = isFilled ? palette.hues[(style >> 4) & 15] : pen.createPattern(palette[state], "repeat");
    pen.fillRect(x, y, width, height);
    if (state !== SHARED) return;
    pen.fillStyle = palette.mark;
    const thick = Math.max(1, Math.round(height / 5));
    pen.fillRect(x, y + Math.round((height - thick) / 2), width, thick);
  }

  /** Lines of the ground between rows, faint ones between slots, and clear ones between blocks, where there is room. */
  drawGrid(pen, palette, blockSize) {
    const { width, height } = this.canvas;
    pen.globalAlpha = 1;
    pen.fillStyle = palette.ground;
    const thin = Math.max(1, Math.round(this.cell / 8));
    for (let y = this.cell; y < height; y += this.cell) pen.fillRect(0, Math.round(y) - thin, width, thin);
    if (this.cell >= SMALLEST_GRID) {
      pen.globalAlpha = FAINT;
      for (let column = 1; column < this.columns; column += 1) pen.fillRect(Math.round(column * this.cell) - thin, 0, thin, height);
      pen.globalAlpha = 1;
    }
    if (!blockSize || blockSize * this.cell < 8) return;
    for (let x = blockSize; x < this.columns; x += blockSize) pen.fillRect(Math.round(x * this.cell) - thin, 0, thin, height);
  }

  drawPicture(pen, slots, palette, styleOf, numRows) {
    const picture = new OffscreenCanvas(this.columns, numRows);
    const own = picture.getContext("2d");
    for (let slot = 0; slot < slots.states.length; ) {
      const style = styleOf(slot);
      const rowEnd = Math.min(slots.states.length, slot - (slot % this.columns) + this.columns);
      let end = slot + 1;
      while (end < rowEnd && styleOf(end) === style) end += 1;
      const state = style & 15;
      if (state !== FREE) {
        const strength = state === CACHED ? FAINT : palette.flat[state] ? HALF : 1;
        own.globalAlpha = (style & 256 ? DIMMED : 1) * strength;
        own.fillStyle = palette.flat[state] ?? palette.hues[(style >> 4) & 15];
        own.fillRect(slot % this.columns, Math.floor(slot / this.columns), end - slot, 1);
        if (state === SHARED) {
          own.globalAlpha *= FAINT;
          own.fillStyle = palette.mark;
          own.fillRect(slot % this.columns, Math.floor(slot / this.columns), end - slot, 1);
        }
      }
      slot = end;
    }
    pen.imageSmoothingEnabled = this.cell < 1;
    pen.drawImage(picture, 0, 0, this.canvas.width, this.canvas.height);
  }

  /** The slot under a pointer; null beside all of them. */
  slotAt(event, numSlots) {
    const box = this.canvas.getBoundingClientRect();
    const size = (this.cell / this.canvas.width) * box.width;
    const column = Math.floor((event.clientX - box.left) / size);
    const slot = Math.floor((event.clientY - box.top) / size) * this.columns + column;
    return column >= 0 && column < this.columns && slot >= 0 && slot < numSlots ? slot : null;
  }
}
