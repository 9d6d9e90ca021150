// A button that imports files, as files do that are dropped on the list.

import { html, signal, useRef } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { importFile } from "./importing.js";
import { load, loadTags } from "./list.js";

const WHAT = "Also files dropped here: exports of ChatGPT, Claude, Open WebUI, LibreChat, SillyTavern, OpenAssistant trees, or of this page";

/** What has come of the last import, in words. */
export const report = signal(null);

/** Import files, one after the other. */
export async function importAll(files) {
  const reports = [];
  for (const file of files) {
    const onProgress = (done, all) => (report.value = `Importing ${file.name}: ${done} of ${all}`);
    const told = await importFile(file, onProgress).catch((error) => error.message);
    reports.push(files.length > 1 ? `${file.name}: ${told}` : told);
    report.value = reports.join(" ");
  }
  load({ isWhole: true });
  loadTags();
}

export function ImportButton() {
  const chooser = useRef(null);
  const onFile = (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    importAll(files);
  };
  return html`
    <button onClick=${() => chooser.current.click()} title=${WHAT}><${Icon} name="upload" />Import</button>
    <input type="file" multiple accept=".json,.jsonl,application/json" class="hidden-text" tabindex="-1" aria-label="File to import" ref=${chooser} onChange=${onFile} />
  `;
}
