// How replies are drawn: a conversation's settings, kept with it by the server; of a new one those of this browser.

import { computed, signal } from "../../vendor/htm-preact.js";
import * as api from "./api.js";
import { inWords } from "./errors.js";
import * as view from "./view.js";

const KEY = "radixkv.settings";
export const MOST_DRAFTS = 8;

const { n, ...rest } = restored();
/** How many replies are asked for at once; in this browser. */
export const drafts = signal(n);
/** What a new conversation begins with; in this browser. */
export const defaults = signal(rest);

const unsaved = signal(null); // `{id, settings}`: of a conversation, not yet with the server
let saving = null; // the call that is under way

/** Of the conversation that is open, or of a new one: what was chosen, by the server's names. What is missing the model says. */
export const settings = computed(() => {
  const shown = view.conversation.value;
  if (!shown) return defaults.value;
  return unsaved.value?.id === shown.info.id ? unsaved.value.settings : (shown.info.settings ?? {});
});

/** What a request for replies says besides: how many at once. */
export const readSettings = () => ({ n: drafts.value });

/** Change some of them; undefined: as the model has it. */
export function changeSettings(change) {
  replaceSettings({ ...settings.peek(), ...change });
}

/** These instead of all. */
export function replaceSettings(wanted) {
  const given = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== undefined));
  const shown = view.conversation.peek();
  if (shown) {
    unsaved.value = { id: shown.info.id, settings: given };
    saving ??= save().finally(() => (saving = null));
  } else {
    defaults.value = given;
    keepOwn();
  }
}

export function changeDrafts(number) {
  drafts.value = number;
  keepOwn();
}

/** New conversations begin as this one is. */
export function keepAsDefaults() {
  defaults.value = settings.peek();
  keepOwn();
}

/** Once the server has what was chosen: whoever asks for replies waits for it. */
export const settled = () => saving ?? Promise.resolve();

/** One call at a time, until the server has what was chosen last. */
async function save() {
  for (let wanted = unsaved.peek(); wanted; ) {
    try {
      const info = await api.change(wanted.id, { settings: wanted.settings });
      const shown = view.conversation.peek();
      if (shown?.info.id === info.id && info.version >= shown.info.version) shown.info = info;
    } catch (error) {
      view.notice.value = inWords(error);
    }
    const now = unsaved.peek();
    if (now === wanted) unsaved.value = null;
    wanted = now === wanted ? null : now;
  }
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

function keepOwn() {
  keep(KEY, JSON.stringify({ n: drafts.peek(), ...defaults.peek() }));
}

function restored() {
  try {
    return { n: 1, ...JSON.parse(localStorage.getItem(KEY) ?? "{}") };
  } catch {
    return { n: 1 };
  }
}
