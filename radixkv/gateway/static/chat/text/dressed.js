// A branch as one HTML file, in which replies read as they do on the page.

import { showFormulas } from "./math.js";
import { clean, read } from "./reader.js";

const SHEETS = ["/static/base.css", "/static/vendor/temml.css", "/static/chat/text.css"];
const REPLIES = /(?<=<article class="assistant">[^<]*<h2>[^<]*<\/h2>[^<]*<p class="about">[^<]*<\/p>\s*)<div class="plain" dir="auto">([^<]*)<\/div>/g;

/** The server's HTML of a branch, in which replies are the source of Markdown, with their Markdown shown. */
export async function dressed(source) {
  const replies = await Promise.all(Array.from(source.matchAll(REPLIES), ([, text], index) => shown(text, index)));
  const sheets = await Promise.all(SHEETS.map(async (path) => (await fetch(path)).text()));
  return source.replace(REPLIES, () => replies.shift()).replace("<style>", () => `<style>\n${sheets.join("\n")}`);
}

/** The HTML of a reply, whose text is escaped. */
async function shown(escaped, index) {
  const source = document.createElement("template");
  source.innerHTML = escaped;
  const reply = document.createElement("div");
  reply.className = "markdown";
  for (const { html } of read(source.content.textContent, String(index), []).blocks) {
    const block = reply.appendChild(Object.assign(document.createElement("div"), { dir: "auto" }));
    block.append(clean(html));
  }
  for (const button of reply.querySelectorAll("button")) button.remove();
  for (const part of reply.querySelectorAll(".scrolls")) part.setAttribute("tabindex", "0");
  await showFormulas(reply);
  return reply.outerHTML;
}
