// Colours of the style sheets as a canvas needs them.

import { signal } from "./vendor/htm-preact.js";

/** A signal of what these custom properties are, by name; read again when light and dark change. */
export function coloursOf(names) {
  const read = () => {
    const probe = document.createElement("span");
    document.body.append(probe);
    const found = names.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    });
    probe.remove();
    return Object.fromEntries(found);
  };
  const colours = signal(read());
  const changed = () => (colours.value = read());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  return colours;
}
