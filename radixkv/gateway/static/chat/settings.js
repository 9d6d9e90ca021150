// How replies are asked for, as far as chosen; kept in this browser.

import { signal } from "../vendor/htm-preact.js";

const KEY = "radixkv.settings";
export const MOST_DRAFTS = 8;

/** `n` drafts, and what of `temperature`, `top_p`, `top_k`, `min_p`, `seed` and `max_tokens` was chosen. */
const settings = signal(restored());

export const readSettings = () => settings.value;

export function changeSettings(change) {
  settings.value = { ...settings.peek(), ...change };
  keep(KEY, JSON.stringify(settings.peek()));
}

/** Keep a text in this browser, nothing where it is empty. A store that is full is no reason to stop: the text is on the page. */
export function keep(name, text) {
  try {
    if (text) localStorage.setItem(name, text);
    else localStorage.removeItem(name);
  } catch {
    // full
  }
}

function restored() {
  try {
    return { n: 1, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return { n: 1 };
  }
}
