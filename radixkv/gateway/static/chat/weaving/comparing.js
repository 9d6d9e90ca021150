// What branches that are compared have in common, and what they differ in.

const LEAST = 40; // characters of a common beginning that are worth being shown once
const MARKS = ["```", "**", "$$", "`"]; // of Markdown, that come in pairs

/** The last message that the branches down to `tips` share, or null. */
export function shared(tree, tips) {
  const paths = tips.map((tip) => tree.lineage(tip));
  let last = null;
  for (let level = 0; paths.every((path) => path[level] && path[level].id === paths[0][level].id); level++) last = paths[0][level];
  return last;
}

/** What all texts begin with: whole words, or whole paragraphs where a word stands within something that is not closed. */
export function commonBeginning(texts) {
  const [first, ...others] = texts;
  let length = 0;
  while (length < first.length && others.every((text) => text[length] === first[length])) length++;
  const beginning = first.slice(0, length);
  const words = texts.every((text) => text.length === length) ? beginning : beginning.slice(0, beginning.search(/\S*$/));
  const common = isWhole(words) ? words : words.slice(0, words.lastIndexOf("\n\n") + 2);
  return common.length >= LEAST && isWhole(common) ? common : "";
}

function isWhole(text) {
  const isInTable = /(?:^|\n)\s*\|[^\n]*$/.test(text);
  return !isInTable && MARKS.every((mark) => text.split(mark).length % 2 === 1);
}

/** For each of several replies' settings, those that not all have alike, in words. */
export function differing(all) {
  const names = [...new Set(all.flatMap((settings) => Object.keys(settings)))];
  const different = names.filter((name) => new Set(all.map((settings) => JSON.stringify(settings[name] ?? null))).size > 1);
  return all.map((settings) => different.map((name) => `${name.replaceAll("_", " ")} ${inWords(settings[name])}`).join(" · "));
}

const inWords = (value) => (value == null || value.length === 0 ? "none" : Array.isArray(value) ? value.join(", ") : String(value));
