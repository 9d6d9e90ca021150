// What two texts differ in, word by word.

import { Component, html } from "../../vendor/htm-preact.js";

const LONGEST_MS = 300; // spent on one comparison

/** The text `after`, with what is new in it beside the text `before` and what is gone. */
export class Difference extends Component {
  state = { parts: null };

  componentDidMount() {
    this.#compare();
  }

  componentDidUpdate({ before, after }) {
    if (before !== this.props.before || after !== this.props.after) this.#compare();
  }

  async #compare() {
    const { before, after } = this.props;
    const parts = await difference(before, after).catch(() => null);
    if (before === this.props.before && after === this.props.after) this.setState({ parts });
  }

  render({ after }, { parts }) {
    return html`<div class="plain difference" dir="auto">${parts?.map(shown) ?? after}</div>`;
  }
}

function shown({ value, added, removed }) {
  if (added) return html`<ins>${value}</ins>`;
  return removed ? html`<del>${value}</del>` : value;
}

/** Pieces of both texts in their order, `{value, added, removed}`; null where they differ too much to be compared in time. */
export async function difference(before, after) {
  await import("../../vendor/diff.js");
  const intlSegmenter = new Intl.Segmenter(undefined, { granularity: "word" });
  return globalThis.Diff.diffWords(before, after, { intlSegmenter, timeout: LONGEST_MS }) ?? null;
}
