// The fields of the settings; only what the server takes is kept.

import { Component, html } from "../../vendor/htm-preact.js";
import { model, models } from "../conversation/model.js";
import { MOST_DRAFTS, changeDrafts, changeSettings, defaults, drafts, keepAsDefaults, replaceSettings, settings } from "../conversation/settings.js";
import { conversation } from "../conversation/view.js";

const MOST_STOPS = 16;
const MOST_STOP_CHARACTERS = 256;

/** @type {[string, string, any][]} the setting's name, its label, bounds and what stands in an empty field */
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any", placeholder: "model's" }],
  ["top_p", "Top p", { min: 0, max: 1, step: "any", placeholder: "model's" }],
  ["top_k", "Top k", { min: 0, max: 2 ** 31 - 1, step: 1, placeholder: "model's" }],
  ["min_p", "Min p", { min: 0, max: 1, step: "any", placeholder: "model's" }],
  ["seed", "Seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, placeholder: "any" }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: "any", placeholder: "0" }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: "any", placeholder: "0" }],
  ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 100, step: "any", placeholder: "1" }],
  ["max_tokens", "Longest reply", { min: 1, max: 2 ** 31 - 1, step: 1, placeholder: "tokens" }],
];

const SIGNS = { "\n": "\\n", "\t": "\\t", "\\": "\\\\" };
const writeStops = (stop) => (stop ?? []).map((text) => text.replace(/[\n\t\\]/g, (sign) => SIGNS[sign])).join("\n");
const readStops = (text) => text.split("\n").filter(Boolean).map((line) => line.replace(/\\(.)/g, (_, sign) => ({ n: "\n", t: "\t" })[sign] ?? sign));

/** Below the composer: of the conversation that is open, or of new ones. */
export function Settings() {
  const chosen = settings.value;
  const isOwn = Boolean(conversation.value);
  const onDrafts = ({ target }) => {
    if (target.validity.valid && target.value) changeDrafts(Number(target.value));
  };
  return html`
    <fieldset id="settings" class="settings">
      <legend class="hidden-text">How replies are drawn</legend>
      <p class="soft small">${isOwn ? "Kept with this conversation." : "For new conversations of this browser."} An empty field is the model's own.</p>
      <label>Drafts at once <input type="number" required min="1" max=${MOST_DRAFTS} step="1" value=${drafts.value} onInput=${onDrafts} /></label>
      <${SettingFields} settings=${chosen} onChange=${changeSettings} />
      <div class="choices">
        <button type="button" class="small" disabled=${!Object.keys(chosen).length} onClick=${() => replaceSettings({})}>Reset to the model's own</button>
        ${isOwn && !isSame(chosen, defaults.value) && html`<button type="button" class="small" onClick=${keepAsDefaults}>Use for new conversations</button>`}
      </div>
    </fieldset>
  `;
}

const isSame = (one, other) => JSON.stringify(Object.entries(one).sort()) === JSON.stringify(Object.entries(other).sort());

/** Fields of `settings`; `onChange` hears of each change that is valid, undefined of a field that is empty. */
export function SettingFields({ settings: chosen, onChange }) {
  const number = (name) => ({ target }) => {
    if (target.validity.valid) onChange({ [name]: target.value === "" ? undefined : Number(target.value) });
  };
  return html`
    <${ModelField} chosen=${chosen.model} onChange=${onChange} />
    ${NUMBERS.map(([name, label, bounds]) => html`<label>${label} <input type="number" ...${bounds} value=${chosen[name] ?? ""} onInput=${number(name)} /></label>`)}
    <${StopsField} stop=${chosen.stop} onChange=${onChange} />
  `;
}

/** The model or one of its adapters, where there is a choice. */
function ModelField({ chosen, onChange }) {
  const names = models.value.map((one) => one.id);
  if (chosen && !names.includes(chosen)) names.push(chosen);
  if (names.length < 2) return null;
  return html`<label>Model <select value=${chosen ?? model.value?.id} onChange=${({ target }) => onChange({ model: target.value === model.value?.id ? undefined : target.value })}>
    ${names.map((name) => html`<option key=${name} value=${name}>${name}${models.value.some((one) => one.id === name) ? "" : " (not served)"}</option>`)}
  </select></label>`;
}

/** Texts that end a reply, one in each line. What one writes stays as it is, as long as it says the same. */
class StopsField extends Component {
  text = writeStops(this.props.stop);

  write = ({ target }) => {
    this.text = target.value;
    const texts = readStops(this.text);
    const isLong = texts.some((text) => [...text].length > MOST_STOP_CHARACTERS);
    target.setCustomValidity(texts.length > MOST_STOPS ? `At most ${MOST_STOPS} lines.` : isLong ? `At most ${MOST_STOP_CHARACTERS} characters in a line.` : "");
    this.isRefused = !target.validity.valid;
    if (!this.isRefused) this.props.onChange({ stop: texts.length ? texts : undefined });
  };

  render({ stop }) {
    if (!this.isRefused && JSON.stringify(readStops(this.text)) !== JSON.stringify(stop ?? [])) this.text = writeStops(stop);
    return html`<label class="stops" title="\\n stands for a line break">Stop at <textarea rows="1" value=${this.text} onInput=${this.write}
      placeholder="these texts, one in each line"></textarea></label>`;
  }
}
