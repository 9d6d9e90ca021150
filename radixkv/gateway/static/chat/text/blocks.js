// A text that grows is read block by block, so that only the blocks at its end are read again.

import { read } from "./reader.js";

/**
 * The HTML of the blocks of a text that grows: the same as if it were read whole. Its beginning is not read again, up to a block
 * but one before the last that begins behind an empty line: nothing that follows reaches over that. A text with notes or named
 * addresses is read whole, as they count for all of it. `name`: see `read`.
 */
export class Blocks {
  #name;
  #text = ""; // read for good
  #parts = [];
  #outline = [];
  #isWhole = false;

  constructor(name = "") {
    this.#name = name;
  }

  /** Characters at the beginning that are not read again while the text grows. */
  get numSettled() {
    return this.#text.length;
  }

  of(text) {
    if (!text.startsWith(this.#text)) {
      this.#isWhole = false;
      this.#forget();
    }
    const rest = text.slice(this.#text.length);
    const { blocks, isWhole } = read(rest, this.#name, this.#outline);
    if (isWhole && this.#text) {
      this.#isWhole = true;
      this.#forget();
      return read(text, this.#name, []).blocks.map(({ html }) => html);
    }
    const parts = [...this.#parts, ...blocks.map(({ html }) => html)];
    if (!isWhole && !this.#isWhole && !text.includes("\r")) this.#settle(rest.split("\n"), blocks);
    return parts;
  }

  #settle(lines, blocks) {
    let next = blocks.length - 2;
    while (next > 0 && lines[blocks[next].line - 1].trim()) next--;
    if (next <= 0) return;
    this.#text += lines.slice(0, blocks[next].line).map((line) => `${line}\n`).join("");
    this.#parts = [...this.#parts, ...blocks.slice(0, next).map(({ html }) => html)];
    this.#outline = blocks[next - 1].outline;
  }

  #forget() {
    this.#text = "";
    this.#parts = [];
    this.#outline = [];
  }
}
