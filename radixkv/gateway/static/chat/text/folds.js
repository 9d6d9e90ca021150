// What a text folds away: <details> with its <summary>, and what a model has written between <think> tags. A fold that is not
// closed goes on to the end of the text.

const OPEN = /^<(details|think|thinking)(?:\s+open)?>/i;
const SUMMARY = /^\s*<summary>(.*?)(?:<\/summary>|$)/i;
const FENCE = /^(?:`{3,}|~{3,})/;
const NAMES = { details: "Details", think: "Thinking", thinking: "Thinking" };

/** A plugin of markdown-it. */
export function folds(reader) {
  reader.block.ruler.before("fence", "fold", readFold, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

function readFold(state, first, end, isAsked) {
  if (state.sCount[first] - state.blkIndent >= 4) return false;
  const opening = OPEN.exec(lineOf(state, first));
  if (!opening) return false;
  if (isAsked) return true;
  const tag = opening[1].toLowerCase();
  const { next, isClosed } = findEnd(state, first, end, tag);
  const content = { line: first, offset: state.bMarks[first] + state.tShift[first] + opening[0].length };
  const summary = tag === "details" ? readSummary(state, content, next) : null;

  state.push("fold_open", "details", 1).map = [first, next];
  state.push("summary_open", "summary", 1);
  state.push("text", "", 0).content = summary || NAMES[tag];
  state.push("summary_close", "summary", -1);
  readContent(state, content, next, isClosed ? `</${tag}>` : "");
  state.push("fold_close", "details", -1);
  state.line = next;
  return true;
}

function lineOf(state, line) {
  return state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trimEnd();
}

/** The line behind the fold that begins at `first`, and whether a closing tag ends it. */
function findEnd(state, first, end, tag) {
  let depth = 0;
  let isCode = false;
  for (let line = first; line < end; line++) {
    const text = lineOf(state, line);
    if (text && state.sCount[line] < state.blkIndent) return { next: line, isClosed: false }; // the list item ends
    if (FENCE.test(text)) isCode = !isCode;
    if (isCode) continue;
    if (OPEN.exec(text)?.[1].toLowerCase() === tag) depth++;
    if (text.toLowerCase().endsWith(`</${tag}>`) && --depth === 0) return { next: line + 1, isClosed: true };
  }
  return { next: end, isClosed: false };
}

/** The summary, on the line of the opening tag or on the next one; `content` is moved to what follows it. */
function readSummary(state, content, next) {
  for (let line = content.line; line < Math.min(content.line + 2, next); line++) {
    const offset = line === content.line ? content.offset : state.bMarks[line] + state.tShift[line];
    const text = state.src.slice(offset, state.eMarks[line]);
    const found = SUMMARY.exec(text);
    if (found) {
      Object.assign(content, { line, offset: offset + found[0].length });
      return found[1].replace(/<\/?\w+>/g, "").trim();
    }
    if (text.trim()) break;
  }
  return null;
}

/** The blocks from `content` to the closing tag, which need not stand on lines of their own. */
function readContent(state, { line, offset }, next, closing) {
  const names = ["bMarks", "tShift", "sCount", "eMarks"];
  const lists = names.map((name) => state[name]);
  const { lineMax, parentType } = state;
  for (const name of names) state[name] = [...state[name]];
  state.bMarks[line] = offset;
  state.tShift[line] = /^\s*/.exec(state.src.slice(offset, state.eMarks[line]))[0].length;
  state.sCount[line] = state.blkIndent;
  if (closing) state.eMarks[next - 1] = state.src.slice(0, state.eMarks[next - 1]).trimEnd().length - closing.length;
  Object.assign(state, { lineMax: next, parentType: "fold" });
  state.md.block.tokenize(state, line, next);
  Object.assign(state, { lineMax, parentType });
  for (const [index, name] of names.entries()) state[name] = lists[index];
}
