// The address leads to what is shown: when the page is loaded, a link is followed, or the browser goes back or forward.

import { leave, open } from "./following.js";
import * as view from "./view.js";

/** Show what the address asks for, now and whenever it changes. */
export function followAddress() {
  addEventListener("popstate", route);
  route();
}

/** Go to an address of this page, as a link to it does. */
export function go(address) {
  history.pushState({ isOwn: true }, "", address || location.pathname);
  route();
}

function route() {
  view.panel.value = history.state?.panel ?? null;
  const { id } = view.asked();
  if (!id) {
    if (view.followed.peek()) leave();
  } else if (id !== view.followed.peek()) {
    open(id);
  } else if (view.conversation.peek() && view.isElsewhere()) {
    view.arrive();
  }
}
