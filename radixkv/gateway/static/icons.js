// The icons of the pages.

import { html } from "./vendor/htm-preact.js";
import shapes from "./vendor/lucide.js";

const SVG = "http://www.w3.org/2000/svg";
const drawn = new Map();

/** What draws an icon into its `<svg>`: a long conversation shows thousands, and copies of one drawing cost least. */
function drawing(name) {
  const drawing = document.createDocumentFragment();
  for (const [tag, attributes] of shapes[name]) {
    const shape = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    drawing.append(shape);
  }
  return (svg) => svg?.append(drawing.cloneNode(true));
}

/** An icon by its name at Lucide; the control that it stands on says what it does. */
export function Icon({ name }) {
  if (!drawn.has(name)) drawn.set(name, drawing(name));
  return html`<svg key=${name} class="icon" viewBox="0 0 24 24" aria-hidden="true" ref=${drawn.get(name)} />`;
}
