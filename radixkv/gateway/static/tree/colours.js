// The colours of tree.css as the canvas needs them, read anew when light and dark change.

const HEATS = 7;
/** Past this a node is as cold as can be, in seconds. */
const COLD_S = 1800;
const NAMES = [
  "text", "text-soft", "line", "line-strong", "ground", "raised", "sunken", "accent", "accent-ground", "pinned", "danger", "warn",
  "on-role", "role-system", "role-user", "role-assistant", "role-other",
];

let colours = null;

/** Colours by their names in the style sheet; `heats` from hot to cold. */
export function palette() {
  colours ??= read();
  return colours;
}

/** Call `onChange` when light turns to dark or back. */
export function watchPalette(onChange) {
  const changed = () => {
    colours = null;
    onChange();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

/** The colour of what was used so many seconds ago. */
export function heat(age_s) {
  const share = Math.log1p(Math.max(0, age_s) / 2) / Math.log1p(COLD_S / 2);
  const { heats } = palette();
  return heats[Math.min(heats.length - 1, Math.floor(share * heats.length))];
}

function read() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colourOf = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  /** @type {Record<string, any>} */
  const found = Object.fromEntries(NAMES.map((name) => [name, colourOf(name)]));
  found.heats = Array.from({ length: HEATS }, (_, index) => colourOf(`heat-${index}`));
  probe.remove();
  return found;
}
