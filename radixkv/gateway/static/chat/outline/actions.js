// What one does to branches in the outline.

import { askForText, isConfirmed } from "../../dialog.js";
import { count } from "../../words.js";
import { attempt } from "../conversation/actions.js";
import * as api from "../conversation/api.js";
import { excerpt } from "../conversation/conversation.js";
import { drop } from "../conversation/following.js";
import * as view from "../conversation/view.js";
import { showToast } from "../shared/toasts.js";
import * as pins from "./pins.js";

const idOfShown = () => view.conversation.peek().info.id;

/** Change a message's star or name here, and there. */
const mark = (message, change) =>
  attempt(async () => {
    const owner = idOfShown();
    const marked = await api.mark(owner, message.id, change);
    if (view.conversation.peek()?.info.id === owner) view.conversation.peek().put(marked);
  });

export async function star(message) {
  if (await mark(message, { starred: !message.starred })) view.say(message.starred ? "Star taken away." : "Starred.");
}

export async function name(message) {
  const text = message.name ?? "";
  const given = await askForText({ title: "Name of this branch", text, action: "Name it", isOptional: true });
  if (given !== null && given !== text) await mark(message, { name: given });
}

/** Throw a message away with all below it; undoing it brings it back. */
export const prune = (message) =>
  attempt(async () => {
    const owner = idOfShown();
    const tip = view.tip.peek();
    const { ids } = await api.throwBranch(owner, message.id);
    const what = `${count(ids.length, "message")} thrown away: “${message.name || excerpt(message.text, 40)}”`;
    showToast(what, () => bringBack(owner, message.id, ids.includes(tip) ? tip : null));
    if (view.conversation.peek()?.info.id === owner) drop(ids);
  });

/** Bring back a branch that was thrown away, and show `tip` of it, if any. */
export const bringBack = (owner, id, tip = null) =>
  attempt(async () => {
    const { messages } = await api.restoreBranch(owner, id);
    const shown = view.conversation.peek();
    if (shown?.info.id !== owner) return;
    shown.putAll(messages);
    if (tip) view.show(shown.has(tip) ? tip : shown.tip(id), { isStep: true });
    view.say(`${count(messages.length, "message")} brought back.`);
  });

/** Delete a branch that was thrown away; whether it is gone. */
export async function deleteForGood(owner, { message, num_messages: num }) {
  const text = `${count(num, "message")} will be gone for good: “${message.name || excerpt(message.text, 40)}”`;
  if (!(await isConfirmed({ title: "Delete for good?", text, action: "Delete for good" }))) return false;
  return attempt(() => api.removeThrown(owner, message.id));
}

export const pin = (id, ttl_s) =>
  attempt(async () => {
    const num = await pins.pin(id, ttl_s);
    view.say(num ? `${count(num, "token")} pinned.` : "Nothing of this branch is cached now.");
    if (!num) view.notice.value = { text: "Nothing of this branch is cached now, so nothing was pinned." };
  });

export const unpin = (id) => attempt(() => pins.unpin(id).then(() => view.say("Unpinned.")));

/** Show a branch beside the one that is shown. */
export const beside = (id) => view.compare([view.tip.peek(), view.conversation.peek().tip(id)]);

/** Go to a branch's place in what the cache holds. */
export const showInTree = (id) => location.assign(`/tree#${idOfShown()}/${id}`);
