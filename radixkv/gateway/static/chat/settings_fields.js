// The fields of the settings; only what the server takes is kept.

import { html } from "../vendor/htm-preact.js";
import { MOST_DRAFTS, changeSettings, readSettings } from "./settings.js";

export function Settings() {
  const settings = readSettings();
  const number = (name) => ({ target }) => {
    if (target.validity.valid) changeSettings({ [name]: target.value === "" ? undefined : Number(target.value) });
  };
  const drafts = ({ target }) => {
    if (target.validity.valid && target.value) changeSettings({ n: Number(target.value) });
  };
  return html`
    <fieldset id="settings" class="settings">
      <legend class="hidden-text">How replies are asked for</legend>
      <label>Drafts at once <input type="number" required min="1" max=${MOST_DRAFTS} step="1" value=${settings.n} onInput=${drafts} /></label>
      <label>Temperature <input type="number" min="0" max="2" step="any" placeholder="model's" value=${settings.temperature ?? ""}
        onInput=${number("temperature")} /></label>
      <label>Longest reply <input type="number" min="1" step="1" placeholder="tokens" value=${settings.max_tokens ?? ""}
        onInput=${number("max_tokens")} /></label>
    </fieldset>
  `;
}
