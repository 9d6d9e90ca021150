// Markdown as HTML that can do nothing: no HTML of the author's passes the parser, and what it makes passes a sanitizer.
//
// A text that grows is parsed whole and shown block by block, so that only the block that grows is replaced.

import markdownit from "../vendor/markdown-it.js";
import "../vendor/purify.js";
import highlight from "../vendor/highlight.js";
import { copyText } from "./clipboard.js";
import { Component, html } from "../vendor/htm-preact.js";

const MOST_HIGHLIGHTED = 20_000; // characters of a code block
const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "s", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["class", "href", "rel", "start", "target", "title", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):|^#/i,
};

const reader = markdownit({ html: false, linkify: true, breaks: true });
const escape = reader.utils.escapeHtml;

reader.renderer.rules.fence = (tokens, index) => codeBlock(tokens[index].content, tokens[index].info.trim().split(/\s+/)[0]);
reader.renderer.rules.code_block = (tokens, index) => codeBlock(tokens[index].content, "");
reader.renderer.rules.table_open = () => '<div class="wide"><table>';
reader.renderer.rules.table_close = () => "</table></div>";

// The page loads nothing from elsewhere: a picture is a link to it.
reader.renderer.rules.image = (tokens, index) => {
  const { content, attrs } = tokens[index];
  const address = escape(Object.fromEntries(attrs).src ?? "");
  return `<a href="${address}" target="_blank" rel="noopener noreferrer nofollow">${escape(content || "picture")}</a>`;
};
reader.renderer.rules.link_open = (tokens, index, options, env, self) => {
  tokens[index].attrSet("target", "_blank");
  tokens[index].attrSet("rel", "noopener noreferrer nofollow");
  return self.renderToken(tokens, index, options);
};
for (const cell of ["th_open", "td_open"]) {
  // The policy of the page lets no style attribute through.
  reader.renderer.rules[cell] = (tokens, index, options, env, self) => {
    const align = /text-align:(\w+)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
    tokens[index].attrs = align ? [["class", `to-${align}`]] : null;
    return self.renderToken(tokens, index, options);
  };
}

function codeBlock(source, language) {
  const isKnown = source.length < MOST_HIGHLIGHTED && highlight.getLanguage(language);
  const body = isKnown ? highlight.highlight(source, { language, ignoreIllegals: true }).value : escape(source);
  const head = `<span>${escape(language)}</span><button type="button" class="bare copy-code">Copy</button>`;
  return `<div class="code"><div class="code-head">${head}</div><pre><code class="hljs">${body}</code></pre></div>`;
}

/** The top-level blocks of a text: `parts`, the HTML of each; `lines`, where each begins; and whether it names addresses. */
function read(text) {
  const env = {};
  const tokens = reader.parse(text, env);
  const parts = [];
  const lines = [];
  let first = 0;
  for (let index = 0; index < tokens.length; index++) {
    if (tokens[index].level === 0 && tokens[index].nesting <= 0) {
      parts.push(reader.renderer.render(tokens.slice(first, index + 1), reader.options, env));
      lines.push(tokens[first].map[0]);
      first = index + 1;
    }
  }
  return { parts, lines, hasReferences: Object.keys(env.references ?? {}).length > 0 };
}

/**
 * The blocks of a text that grows. Its beginning is not read again, up to the last block but one, to which what follows can add
 * nothing; but a text that names addresses is read whole, as they count for all of it.
 */
export class Blocks {
  #text = ""; // read for good
  #parts = [];
  #isWhole = false;

  /** Characters at the beginning that are not read again while the text grows. */
  get numSettled() {
    return this.#text.length;
  }

  of(text) {
    if (!text.startsWith(this.#text)) {
      this.#isWhole = false;
      this.#forget();
    }
    const { parts, lines, hasReferences } = read(text.slice(this.#text.length));
    if (hasReferences && this.#text) {
      this.#isWhole = true;
      this.#forget();
      return read(text).parts;
    }
    const all = [...this.#parts, ...parts];
    if (hasReferences || this.#isWhole || parts.length < 3 || text.includes("\r")) return all;
    const before = text.slice(this.#text.length).split("\n").slice(0, lines.at(-2));
    this.#text += before.map((line) => `${line}\n`).join("");
    this.#parts = all.slice(0, -2);
    return all;
  }

  #forget() {
    this.#text = "";
    this.#parts = [];
  }
}

class Block extends Component {
  shouldComponentUpdate({ source }) {
    return source !== this.props.source;
  }

  render({ source }) {
    const content = { __html: globalThis.DOMPurify.sanitize(source, ALLOWED) };
    return html`<div dangerouslySetInnerHTML=${content}></div>`;
  }
}

/** A text as Markdown. */
export class Markdown extends Component {
  blocks = new Blocks();

  shouldComponentUpdate({ text }) {
    return text !== this.props.text;
  }

  render({ text }) {
    return html`<div class="markdown" onClick=${copyCode}>${this.blocks.of(text).map((source) => html`<${Block} source=${source} />`)}</div>`;
  }
}

async function copyCode(event) {
  const button = event.target.closest(".copy-code");
  if (!button) return;
  await copyText(button.closest(".code").querySelector("code").textContent);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
