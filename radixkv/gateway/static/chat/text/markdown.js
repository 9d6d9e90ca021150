// A text as Markdown, which may grow: what is shown of it already stays, with what is opened, scrolled, selected or focused in it.

import { Component, html } from "../../vendor/htm-preact.js";
import morph from "../../vendor/morphdom.js";
import { Blocks } from "./blocks.js";
import { actOnCode } from "./code.js";
import { isSameFormula, showFormulas } from "./math.js";
import { clean } from "./reader.js";
import { watchScrolling } from "./scrolling.js";

const KEPT = ["open", "aria-pressed", "tabindex", "role"]; // attributes that the reader's doing has set

class Block extends Component {
  shouldComponentUpdate({ source }) {
    return source !== this.props.source;
  }

  componentDidMount() {
    this.element.append(clean(this.props.source));
    this.#finish();
  }

  componentDidUpdate() {
    const next = this.element.cloneNode(false);
    next.append(clean(this.props.source));
    appendTexts(this.element, next);
    morph(this.element, next, { childrenOnly: true, onBeforeElUpdated: keepState });
    this.#finish();
  }

  #finish() {
    showFormulas(this.element);
    watchScrolling(this.element);
  }

  render() {
    return html`<div dir="auto" ref=${(element) => (this.element = element)}></div>`;
  }
}

function keepState(element, next) {
  if (element.isEqualNode(next) || isSameFormula(element, next)) return false;
  for (const name of KEPT) if (element.hasAttribute(name)) next.setAttribute(name, element.getAttribute(name));
  if (element.role) next.setAttribute("aria-label", element.getAttribute("aria-label"));
  appendTexts(element, next);
  return true;
}

/** Append to texts what they grow by: a text that is replaced loses what is selected of it. */
function appendTexts(element, next) {
  element.childNodes.forEach((text, index) => {
    const grown = next.childNodes[index];
    if (text instanceof Text && grown instanceof Text && grown.data.startsWith(text.data)) text.appendData(grown.data.slice(text.length));
  });
}

let numTexts = 0;

/** A text as Markdown. */
export class Markdown extends Component {
  blocks = new Blocks(String(++numTexts)); // two texts of the page have no footnote in common

  shouldComponentUpdate({ text }) {
    return text !== this.props.text;
  }

  render({ text }) {
    return html`<div class="markdown" onClick=${onClick}>${this.blocks.of(text).map((source) => html`<${Block} source=${source} />`)}</div>`;
  }
}

function onClick(event) {
  const note = event.target.closest('a[href^="#footnote"]:not([target])');
  if (!note) {
    actOnCode(event);
    return;
  }
  event.preventDefault(); // the page's address names a message
  const target = document.getElementById(note.hash.slice(1));
  const place = /** @type {HTMLElement} */ (target.matches("a") ? target.previousElementSibling : target);
  place.tabIndex = place.matches("a") ? 0 : -1;
  place.focus();
}
