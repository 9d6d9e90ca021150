// The focus is not lost when what has it goes away: it moves to what is there instead.

const HOMES = [".compare-head button", 'article[tabindex="0"]', "#composer-text"];
let last = null;
let isWriting = false;

addEventListener("focusin", ({ target }) => {
  last = /** @type {Element} */ (target);
  isWriting = Boolean(last.closest(".composer"));
});

/** After the page has changed: if what had the focus has gone, focus what one goes on with. */
export function keepFocus() {
  const at = document.activeElement;
  if (!last || (at !== document.body && at.checkVisibility()) || (last.isConnected && last.checkVisibility())) return;
  /** @type {HTMLElement[]} */
  const homes = (isWriting ? [...HOMES].reverse() : HOMES).map((home) => document.querySelector(home));
  homes.find((home) => home?.checkVisibility())?.focus({ preventScroll: true });
}
