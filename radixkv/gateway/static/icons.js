// The icons of the pages.

import { h, html } from "./vendor/htm-preact.js";
import shapes from "./vendor/lucide.js";

/** An icon by its name at Lucide; the control that it stands on says what it does. */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">${shapes[name].map(([tag, attributes]) => h(tag, attributes))}</svg>`;
}
