// The sides of the page: on a narrow screen they slide in, on a wide one they stand there unless one has put them away.

import { computed, signal } from "../vendor/htm-preact.js";
import { keep } from "./conversation/settings.js";
import * as view from "./conversation/view.js";

const KEY = "radixkv.sides";
const narrow = matchMedia("(max-width: 900px)"); // as in look.css

const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => (isNarrow.value = narrow.matches));
const away = signal((localStorage.getItem(KEY) ?? "").split(" ").filter(Boolean)); // names of sides, kept in this browser

/** Whether a side is in sight, "list" or "map". */
export const isOpen = (name) => (isNarrow.value ? view.panel.value === name : !away.value.includes(name));

/** Show a side, or put it away. */
export function toggleSide(name) {
  if (isNarrow.peek()) {
    view.toggle(name);
    return;
  }
  const rest = away.peek().filter((one) => one !== name);
  away.value = rest.length < away.peek().length ? rest : [...rest, name];
  keep(KEY, away.peek().join(" "));
}

/** Show a side. */
export function showSide(name) {
  if (!(isNarrow.peek() ? view.panel.peek() === name : !away.peek().includes(name))) toggleSide(name);
}

/** Classes of the page for the sides that are put away. */
export const awayClasses = computed(() => (isNarrow.value ? [] : away.value).map((name) => `without-${name}`).join(" "));
