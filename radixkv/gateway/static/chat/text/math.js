// Formulas in a text: $…$, $$…$$, \(…\) and \[…\]. One ends within its paragraph, on its line if it is in single dollars: what is not
// closed is text, and what stands above an empty line is settled while a text grows.
//
// They are shown by Temml as MathML, which is loaded for the first one. Until then, and where it makes no sense of a formula, its
// source is shown.

const PAIRS = [["$$", "$$"], ["\\[", "\\]"], ["\\(", "\\)"], ["$", "$"]];
const MOST = 5_000; // characters of a formula
const LIMITS = { maxExpand: 200, maxSize: [40, 400] }; // calls of macros; sizes in em and in pt
const RETRY_MS = 10_000; // until a formula asks again for what could not be loaded
const VENDOR = "/static/vendor/temml";

// -- where they are

/** A plugin of markdown-it. */
export function math(reader) {
  const { escapeHtml: escape } = reader.utils;
  reader.block.ruler.before("fence", "math_block", readBlock, { alt: ["paragraph", "reference", "blockquote", "list"] });
  reader.inline.ruler.before("escape", "math", readInline);
  reader.renderer.rules.math_block = (tokens, index) => `<div class="math display scrolls" dir="ltr">${escape(tokens[index].content)}</div>`;
  reader.renderer.rules.math = (tokens, index) => {
    const isDisplay = tokens[index].markup === "$$" || tokens[index].markup === "\\[";
    return `<span class="math${isDisplay ? " display scrolls" : ""}" dir="ltr">${escape(tokens[index].content)}</span>`;
  };
}

/** A formula on lines of its own. */
function readBlock(state, first, end, isAsked) {
  const [open, close] = PAIRS.slice(0, 2).find(([mark]) => state.src.startsWith(mark, state.bMarks[first] + state.tShift[first])) ?? [];
  if (!open || state.sCount[first] - state.blkIndent >= 4) return false;
  let source = "";
  for (let line = first; line < end && source.length < MOST; line++) {
    const text = state.getLines(line, line + 1, state.blkIndent, false).trim();
    if (!text || (line > first && state.sCount[line] < state.blkIndent)) return false;
    source += line > first ? `\n${text}` : text;
    const at = source.indexOf(close, open.length);
    if (at < 0) continue;
    if (at + close.length < source.length || !isFormula(source.slice(open.length, at))) return false;
    if (isAsked) return true;
    const token = state.push("math_block", "", 0);
    Object.assign(token, { block: true, content: source, markup: open, map: [first, line + 1] });
    state.line = line + 1;
    return true;
  }
  return false;
}

function readInline(state, isAsked) {
  const { src, pos, posMax } = state;
  const [open, close] = PAIRS.find(([mark]) => src.startsWith(mark, pos)) ?? [];
  if (!open) return false;
  const begin = pos + open.length;
  const text = src.slice(begin, Math.min(posMax, begin + MOST));
  const length = open === "$" ? lengthInDollars(src[pos - 1], text) : text.indexOf(close);
  if (length < 0 || !isFormula(text.slice(0, length))) return false;
  state.pos = begin + length + close.length;
  if (!isAsked) Object.assign(state.push("math", "", 0), { content: src.slice(pos, state.pos), markup: open });
  return true;
}

/** The length of a formula in single dollars, or -1: prices are none. */
function lengthInDollars(before, text) {
  const [formula] = /^(?:[^$\\\n]|\\[^\n])+(?=\$(?!\d))/.exec(text) ?? [""];
  const isPrice = /^\d[\d.,]*\s+\p{L}{2}/u.test(formula) || /[\p{L}\p{N}$]/u.test(before ?? "");
  return formula && !isPrice && !/^\s|\s$/.test(formula) ? formula.length : -1;
}

/** Code is no formula: what is between dollars in it, or around it. */
function isFormula(text) {
  return text.trim() && !text.includes("`");
}

// -- how they are shown

const sources = new WeakMap(); // of the elements that have been read
let loading = null;

/** The source of the formula that an element shows. */
export const sourceOf = (element) => sources.get(element) ?? element.textContent;

/** Whether an element shows the formula that another one is to show. */
export function isSameFormula(element, next) {
  return element.className === next.className && sources.get(element) === next.textContent;
}

/** Show the formulas below an element: at once, or when what shows them is there; without it the sources stay. */
export async function showFormulas(element) {
  const found = element.querySelectorAll(".math");
  if (found.length && !globalThis.temml) await load().catch(() => {});
  if (globalThis.temml) for (const each of found) showFormula(each);
}

function showFormula(element) {
  const source = element.textContent;
  if (sources.has(element) && (element.firstElementChild || sources.get(element) === source)) return;
  sources.set(element, source);
  const size = source.startsWith("$") && !source.startsWith("$$") ? 1 : 2;
  const displayMode = element.classList.contains("display");
  try {
    globalThis.temml.render(source.slice(size, -size), element, { ...LIMITS, displayMode, throwOnError: true });
    for (const named of element.querySelectorAll("[id], [href]")) {
      named.removeAttribute("id");
      named.removeAttribute("href");
    }
  } catch {
    element.textContent = source;
  }
}

function load() {
  return (loading ??= new Promise((/** @type {(nothing?: void) => void} */ done, fail) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${VENDOR}.css` });
    const script = Object.assign(document.createElement("script"), { src: `${VENDOR}.js` });
    script.onload = script.onerror = () => {
      if (globalThis.temml) {
        done();
      } else {
        setTimeout(() => (loading = null), RETRY_MS);
        fail(new Error("no Temml"));
      }
    };
    document.head.prepend(sheet); // the page's own rules come after it
    document.head.append(script);
  }));
}
