// Markdown as HTML that can do nothing: no HTML of the author's passes the parser, and what it makes passes a sanitizer.
//
// A text that grows is parsed whole and shown block by block, so that only the block that grows is replaced.

import markdownit from "../vendor/markdown-it.js";
import "../vendor/purify.js";
import highlight from "../vendor/highlight.js";
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

/** The HTML of each top-level block of a text. */
export function blocks(text) {
  const env = {};
  const tokens = reader.parse(text, env);
  const parts = [];
  let first = 0;
  for (let index = 0; index < tokens.length; index++) {
    if (tokens[index].level === 0 && tokens[index].nesting <= 0) {
      parts.push(reader.renderer.render(tokens.slice(first, index + 1), reader.options, env));
      first = index + 1;
    }
  }
  return parts;
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
  shouldComponentUpdate({ text }) {
    return text !== this.props.text;
  }

  render({ text }) {
    return html`<div class="markdown" onClick=${copyCode}>${blocks(text).map((source) => html`<${Block} source=${source} />`)}</div>`;
  }
}

async function copyCode(event) {
  const button = event.target.closest(".copy-code");
  if (!button) return;
  await navigator.clipboard.writeText(button.closest(".code").querySelector("code").textContent);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
