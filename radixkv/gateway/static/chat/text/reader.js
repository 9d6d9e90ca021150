// Markdown as HTML that can do nothing: no HTML of the author's passes the parser, and its output passes a sanitizer.

import markdownit from "../../vendor/markdown-it.js";
import { footnote } from "../../vendor/footnote.js";
import "../../vendor/purify.js";
import { tasklist } from "../../vendor/tasklist.js";
import { codeBlock } from "./code.js";
import { folds } from "./folds.js";
import { math } from "./math.js";

const TAGS = [
  "a", "b", "blockquote", "br", "button", "code", "del", "details", "div", "em", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p",
  "pre", "s", "section", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
];
const ATTRIBUTES = [
  "aria-label", "aria-pressed", "checked", "class", "data-act", "dir", "disabled", "id", "rel", "start", "target", "title", "type",
];
const ALLOWED = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", ...ATTRIBUTES],
  ADD_URI_SAFE_ATTR: ATTRIBUTES, // none of them is an address
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):|^#/i,
  RETURN_DOM_FRAGMENT: true,
};
const FIRST_LEVEL = 3; // the head of a message is an h2
const LAST_LEVEL = 6;

const reader = markdownit({ html: false, linkify: true, breaks: true }).use(tasklist, { label: false }).use(footnote).use(folds).use(math);
reader.inline.ruler.disable("footnoteInline"); // x^[2] is no note
const { escapeHtml: escape } = reader.utils;
const { rules } = reader.renderer;

rules.fence = (tokens, index) => codeBlock(tokens[index].content, tokens[index].info.trim().split(/\s+/)[0], escape);
rules.code_block = (tokens, index) => codeBlock(tokens[index].content, "", escape);
rules.code_inline = (tokens, index) => `<code dir="ltr">${escape(tokens[index].content)}</code>`;
rules.table_open = () => '<div class="wide scrolls"><table>';
rules.table_close = () => "</table></div>";

// The page loads nothing from elsewhere: a picture is a link to it.
rules.image = (tokens, index) => {
  const { content, attrs } = tokens[index];
  const address = escape(Object.fromEntries(attrs).src ?? "");
  return `<a href="${address}" target="_blank" rel="noopener noreferrer nofollow">${escape(content || "picture")}</a>`;
};
rules.link_open = (tokens, index, options, env, self) => {
  tokens[index].attrSet("target", "_blank");
  tokens[index].attrSet("rel", "noopener noreferrer nofollow");
  return self.renderToken(tokens, index, options);
};
for (const cell of ["th_open", "td_open"]) {
  // The policy of the page lets no style attribute through.
  rules[cell] = (tokens, index, options, env, self) => {
    const align = /text-align:(\w+)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
    tokens[index].attrs = align ? [["class", `to-${align}`]] : null;
    return self.renderToken(tokens, index, options);
  };
}
rules.checkbox_input = (tokens, index) => {
  const isDone = tokens[index].attrGet("checked") !== null;
  return `<input type="checkbox" disabled${isDone ? " checked" : ""} aria-label="${isDone ? "done" : "to do"}">`;
};
const backToText = rules.footnote_anchor;
rules.footnote_anchor = (...token) => backToText(...token).replace("<a ", '<a aria-label="Back to the text" ');

/**
 * The top-level blocks of a text: `html`; `line`, where each begins; `outline`, the levels of the headings that a next one is below.
 * `name`: tells its footnotes from those of other texts. `isWhole`: whether something at one end counts at the other.
 */
export function read(text, name, outline) {
  const env = { docId: name };
  const tokens = reader.parse(text, env);
  const blocks = [];
  let levels = outline;
  let first = 0;
  let depth = 0;
  for (let index = 0; index < tokens.length; index++) {
    if (tokens[index].type === "heading_open") levels = below(levels, tokens[index]);
    if (tokens[index].type.startsWith("heading_")) tokens[index].tag = `h${Math.min(FIRST_LEVEL + levels.length - 1, LAST_LEVEL)}`;
    depth += tokens[index].nesting;
    if (depth) continue;
    const html = reader.renderer.render(tokens.slice(first, index + 1), reader.options, env);
    blocks.push({ html, line: tokens[first].map?.[0], outline: levels });
    first = index + 1;
  }
  return { blocks, isWhole: Boolean(env.footnotes) || Object.keys(env.references ?? {}).length > 0 };
}

/** The levels of the headings down to this one: no level is skipped, whatever the text begins with. */
function below(levels, { tag }) {
  const level = Number(tag.slice(1));
  return [...levels.filter((above) => above < level), level];
}

/** The nodes of HTML from `read`. */
export const clean = (source) => globalThis.DOMPurify.sanitize(source, ALLOWED);
