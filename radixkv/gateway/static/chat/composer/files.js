// Files that are dropped on the page or pasted: what they say, where they are texts.

const MOST_BYTES = 500_000;

/** The text of each file that is one, with its name above; and a sentence on each other. */
export async function textsOf(files) {
  const texts = [];
  const refused = [];
  for (const file of files) {
    if (file.size > MOST_BYTES) {
      refused.push(`${file.name} is longer than ${MOST_BYTES.toLocaleString()} bytes.`);
      continue;
    }
    const text = asText(await file.arrayBuffer());
    if (text === null) refused.push(`${file.name} is no text; only text files go into a message.`);
    else texts.push(`${file.name}:\n${fenced(text, file.name)}`);
  }
  return { texts, refused };
}

/** Bytes as text, or null where they are none. */
function asText(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

/** A text as a code block of Markdown that ends where the text does. */
function fenced(text, name) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  const language = /\.(\w+)$/.exec(name)?.[1] ?? "";
  return `${fence}${language}\n${text.trimEnd()}\n${fence}`;
}

/** Have files that are dropped on the page go to `onDrop(files, element)`, so that the browser does not leave the page for them. */
export function watchDrops(onDrop) {
  addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    onDrop(event.dataTransfer.files, /** @type {Element} */ (event.target));
  });
}
