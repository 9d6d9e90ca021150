// The chat page: conversations, the branch that is shown or several side by side, the outline of all branches.
//
// The server keeps everything; the page follows its events, so that two tabs show the same. What is shown is in
// `conversation/view.js`, what the server tells comes in by `following.js` there, what one does goes out by `actions.js`; each part
// of the page reads what it shows, and has a folder. The folders are above one another: the page, messages/, composer/ and
// sidebar/, outline/ and weaving/, conversation/, text/, shared/. The styles stay beside this: a page that was opened before an
// update fetches one by name.

import { effect, html, render } from "../vendor/htm-preact.js";
import { showHeader } from "../page.js";
import { Composer, addFiles } from "./composer/composer.js";
import { watchDrops } from "./composer/files.js";
import { learnModels } from "./conversation/model.js";
import { followAddress } from "./conversation/routing.js";
import * as view from "./conversation/view.js";
import { Thread } from "./messages/thread.js";
import { Outline } from "./outline/outline.js";
import { keepFocus } from "./shared/focus.js";
import { afterRender } from "./shared/motion.js";
import { Toast } from "./shared/toasts.js";
import { learnMe } from "./sidebar/account.js";
import { importAll } from "./sidebar/import_button.js";
import { Sidebar } from "./sidebar/sidebar.js";
import { Compare } from "./weaving/compare.js";
import { Head } from "./head.js";
import { watchKeys } from "./keys.js";
import { Notices } from "./notices.js";
import { awayClasses } from "./sides.js";

function Page() {
  const isCompared = Boolean(view.compared.value && view.conversation.value);
  return html`
    <div class=${`chat ${view.panel.value ? `shows-${view.panel.value}` : ""} ${isCompared ? "compares" : ""} ${awayClasses.value}`}>
      <aside class="sidebar" id="sidebar" aria-label="Conversations"><${Sidebar} /></aside>
      <main>
        <${Head} />
        <${Notices} />
        ${isCompared ? html`<${Compare} />` : html`<${Thread} />`}
        <div hidden=${isCompared}><${Composer} /></div>
      </main>
      ${view.conversation.value && html`<${Outline} />`}
      ${view.panel.value && html`<button class="scrim" aria-label="Close" onClick=${view.closePanel}></button>`}
      <${Toast} />
      <${Said} />
    </div>
  `;
}

/** What is read out. */
function Said() {
  return html`<div class="hidden-text" role="status" aria-live="polite">${view.said.value}</div>`;
}

function onKey({ key, target, ctrlKey, metaKey, altKey }) {
  if (document.querySelector("dialog[open], :popover-open")) return;
  const compared = view.compared.peek();
  if (key === "Escape") {
    if (view.panel.peek()) view.closePanel();
    else if (compared) view.endCompare();
  } else if (compared?.[Number(key) - 1] && !(ctrlKey || metaKey || altKey) && !target.matches("input, textarea")) {
    view.endCompare(compared[Number(key) - 1]);
  }
}

showHeader();
render(html`<${Page} />`, document.getElementById("app"));
addEventListener("keydown", onKey);
watchKeys();
watchDrops((files, element) => {
  if (element.closest(".sidebar")) importAll([...files]);
  else addFiles([...files]);
});
effect(() => {
  for (const part of [view.conversation, view.tip, view.branching, view.compared, view.panel]) part.value;
  view.conversation.value?.shape.value;
  afterRender(keepFocus);
});
followAddress();
learnModels();
learnMe().catch(() => {}); // without an answer the page does without
const field = document.getElementById("composer-text");
if (document.activeElement === document.body && matchMedia("(hover: hover)").matches) field.focus();
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says what is shown
  field.focus();
});
