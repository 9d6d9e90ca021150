// A button that opens a list of actions. It closes with Escape, with a click elsewhere, and with a choice.

import { Component, html } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";

const ROOM_PX = 270; // below the button, or the list stands above it

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

/**
 * `id`: of the list; `label`, `icon`, `tab`: of the button; `items`: `{name, icon, act, isDanger}` each, without those that are
 * false, or a function that tells them. They are on the page while it is open: a page may have a thousand menus.
 */
export class Menu extends Component {
  state = { isOpen: false };

  place = ({ newState }) => {
    this.setState({ isOpen: newState === "open" });
    if (newState !== "open") return;
    placeBeside(this.list, this.button);
  };

  choose(act) {
    this.list.hidePopover();
    this.button.focus({ preventScroll: true });
    act();
  }

  render({ id, label, items, icon = "ellipsis", tab = undefined, class: more = "" }, { isOpen }) {
    const shown = isOpen ? (typeof items === "function" ? items() : items) : [];
    return html`
      <button class=${`bare icon-button ${more}`} aria-label=${label} title=${label} tabindex=${tab} popovertarget=${id}
        ref=${(element) => (this.button = element)}>
        <${Icon} name=${icon} />
      </button>
      <div id=${id} popover="auto" class="menu-items" onBeforeToggle=${this.place} ref=${(element) => (this.list = element)}>
        ${shown.filter(Boolean).map(
          ({ name, icon, act, isDanger = false }) =>
            html`<button class=${isDanger ? "bare danger" : "bare"} onClick=${() => this.choose(act)}><${Icon} name=${icon} />${name}</button>`,
        )}
      </div>
    `;
  }
}
