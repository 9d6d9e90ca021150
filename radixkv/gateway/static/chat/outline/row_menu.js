// What can be done with the branch of a row: one list for all rows, beside the button that asks for it.

import { html, useRef, useSignalEffect } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { span } from "../../words.js";
import * as view from "../conversation/view.js";
import { placeBeside } from "../shared/menu.js";
import { afterRender } from "../shared/motion.js";
import * as actions from "./actions.js";
import { isToldOf } from "./costs.js";
import { pinnedFor_s } from "./pins.js";

const PIN_TIMES = [
  [300, "5 minutes"],
  [3600, "an hour"],
];

/** `asked`: the signal of `{row, button}`; `onDone()`: a choice was made, the focus goes back. */
export function RowMenu({ asked, onDone }) {
  const list = useRef(null);
  const open = useRef(null); // what the list is open for
  useSignalEffect(() => {
    const button = asked.value?.button;
    if (!button) return;
    afterRender(() => {
      if (!list.current || !button.isConnected) return;
      open.current = asked.peek();
      list.current.showPopover();
      placeBeside(list.current, button);
      list.current.querySelector("button")?.focus();
    });
  });
  const row = asked.value?.row;
  const message = row && view.conversation.value?.get(row.id);
  const onToggle = ({ newState }) => {
    if (newState === "closed" && asked.peek() === open.current) asked.value = null;
  };
  const choose = (act) => {
    list.current.hidePopover();
    onDone();
    act();
  };
  return html`
    <div id="row-menu" popover="auto" class="menu-items" aria-label="Actions" role="group" ref=${list} onToggle=${onToggle}>
      ${message &&
      itemsOf(row, message).map(
        ({ name, icon, act, isDanger = false }) =>
          html`<button class=${isDanger ? "bare danger" : "bare"} onClick=${() => choose(act)}><${Icon} name=${icon} />${name}</button>`,
      )}
    </div>
  `;
}

function itemsOf(row, message) {
  const pinned_s = pinnedFor_s(row.end);
  const pins = pinned_s
    ? [{ name: `Unpin (${span(pinned_s)} left)`, icon: "pin-off", act: () => actions.unpin(row.end) }]
    : PIN_TIMES.map(([ttl_s, name]) => ({ name: `Pin for ${name}`, icon: "pin", act: () => actions.pin(row.end, ttl_s) }));
  return [
    { name: "Show it beside", icon: "columns-2", act: () => actions.beside(row.id) },
    { name: message.starred ? "Take the star away" : "Star", icon: "star", act: () => actions.star(message) },
    { name: "Name", icon: "pencil", act: () => actions.name(message) },
    ...(isToldOf.value ? [...pins, { name: "Show in the tree", icon: "git-fork", act: () => actions.showInTree(row.end) }] : []),
    row.kind !== "rest" && { name: "Prune: throw away with all below", icon: "scissors", act: () => actions.prune(message), isDanger: true },
  ].filter(Boolean);
}
