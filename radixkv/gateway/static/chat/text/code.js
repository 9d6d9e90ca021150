// Blocks of code: highlighted, copied, wrapped, saved.

import highlight from "../../vendor/highlight.js";
import { copyText } from "../shared/clipboard.js";
import { saveText } from "../shared/download.js";

const MOST_HIGHLIGHTED = 20_000; // characters
const COPIED_MS = 1500;
const EXTENSIONS = {
  bash: "sh", csharp: "cs", "c++": "cpp", dockerfile: "Dockerfile", golang: "go", javascript: "js", kotlin: "kt", latex: "tex",
  makefile: "mk", markdown: "md", perl: "pl", powershell: "ps1", python: "py", ruby: "rb", rust: "rs", shell: "sh", typescript: "ts",
};
const BUTTONS = `<span><button type="button" class="bare" data-act="wrap" aria-pressed="false">Wrap</button>
<button type="button" class="bare" data-act="save">Download</button>
<button type="button" class="bare" data-act="copy">Copy</button></span>`;

/** A block of code as HTML; `escape`: of text in HTML. */
export function codeBlock(source, language, escape) {
  const isKnown = source.length < MOST_HIGHLIGHTED && highlight.getLanguage(language);
  const body = isKnown ? highlight.highlight(source, { language, ignoreIllegals: true }).value : escape(source);
  const head = `<div class="code-head"><span class="language">${escape(language)}</span>${BUTTONS}</div>`;
  return `<div class="code" dir="ltr">${head}<pre class="scrolls"><code class="hljs">${body}</code></pre></div>`;
}

const ACTS = {
  wrap: (button) => button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true")),
  save: (button, text, language) => saveText(text, fileName(language)),
  async copy(button, text) {
    await copyText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  },
};

/** What a click on a button of a block of code does; whether it was one. */
export function actOnCode(event) {
  const button = event.target.closest("[data-act]");
  if (!button) return false;
  const block = button.closest(".code");
  ACTS[button.dataset.act](button, block.querySelector("code").textContent, block.querySelector(".language").textContent);
  return true;
}

function fileName(language) {
  const name = language.toLowerCase();
  return `code.${EXTENSIONS[name] ?? (/^[a-z0-9]{1,10}$/.test(name) ? name : "txt")}`;
}
