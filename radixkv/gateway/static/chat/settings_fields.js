// The fields of the settings; only what the server takes is kept.

import { html } from "../vendor/htm-preact.js";
import { MOST_DRAFTS, changeSettings, readSettings } from "./settings.js";

/** @type {[string, string, any][]} the setting's name, its label, bounds and what stands in an empty field */
const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any", placeholder: "model's" }],
  ["top_p", "Top p", { min: 0, max: 1, step: "any", placeholder: "model's" }],
  ["top_k", "Top k", { min: 0, max: 2 ** 31 - 1, step: 1, placeholder: "model's" }],
  ["min_p", "Min p", { min: 0, max: 1, step: "any", placeholder: "model's" }],
  ["seed", "Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, placeholder: "any" }],
  ["max_tokens", "Longest reply", { min: 1, step: 1, placeholder: "tokens" }],
];

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
      ${FIELDS.map(
        ([name, label, bounds]) =>
          html`<label>${label} <input type="number" ...${bounds} value=${settings[name] ?? ""} onInput=${number(name)} /></label>`,
      )}
    </fieldset>
  `;
}
