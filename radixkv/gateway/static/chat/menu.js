// A button that opens a list of actions. It closes with Escape, with a click elsewhere, and with a choice.

import { Component, html } from "../vendor/htm-preact.js";
import { Icon } from "../icons.js";

const ROOM_PX = 220; // below the button, or the list stands above it

/** Have an open list stand below a button, or above it where there is no room. */
export function placeBeside(list, button) {
  const { top, bottom, right } = button.getBoundingClientRect();
  const isAbove = innerHeight - bottom < ROOM_PX && top > ROOM_PX;
  Object.assign(list.style, {
    right: `${Math.max(4, document.documentElement.clientWidth - right)}px`,
    top: isAbove ? "auto" : `${bottom + 4}px`,
    bottom: isAbove ? `${innerHeight - top + 4}px` : "auto",
  });
}

/** `id`: of the list; `label`: of the button; `items`: `{name, icon, act, isDanger}` each, without those that are false. */
export class Menu extends Component {
  place = ({ newState }) => {
    if (newState !== "open") return;
    placeBeside(this.list, this.button);
  };

  choose(act) {
    this.list.hidePopover();
    this.button.focus({ preventScroll: true });
    act();
  }

  render({ id, label, items }) {
    return html`
      <button class="bare icon-button" aria-label=${label} title=${label} popovertarget=${id} ref=${(element) => (this.button = element)}>
        <${Icon} name="ellipsis" />
      </button>
      <div id=${id} popover="auto" class="menu-items" onBeforeToggle=${this.place} ref=${(element) => (this.list = element)}>
        ${items.filter(Boolean).map(
          ({ name, icon, act, isDanger = false }) =>
            html`<button class=${isDanger ? "bare danger" : "bare"} onClick=${() => this.choose(act)}><${Icon} name=${icon} />${name}</button>`,
        )}
      </div>
    `;
  }
}
