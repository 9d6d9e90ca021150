// What one does to a conversation. A refusal is shown as a notice.

import { isReachable } from "../../page.js";
import { effect } from "../../vendor/htm-preact.js";
import { copyText } from "../shared/clipboard.js";
import { fileName, saveText } from "../shared/download.js";
import { dressed } from "../text/dressed.js";
import * as api from "./api.js";
import { characters, newId } from "./conversation.js";
import { inWords } from "./errors.js";
import { forgetInstructions, instructionsWritten } from "./instructions.js";
import { go } from "./routing.js";
import { readSettings, settings, settled } from "./settings.js";
import * as view from "./view.js";

/** Id of the conversation that is shown, or null. */
export const idOfShown = () => view.conversation.peek()?.info.id ?? null;

/** Whether it went well; if not, what is wrong is shown. */
export async function attempt(action) {
  view.notice.value = null;
  try {
    await action();
    return true;
  } catch (error) {
    view.notice.value = inWords(error);
    return false;
  }
}

effect(() => {
  if (isReachable.value && view.notice.peek()?.status === 0) view.notice.value = null;
});

let begun = null; // a conversation whose first message has not arrived yet

/**
 * A new message below what is shown, in a new conversation if there is none, and the replies to it. Throws what a person should
 * read; sent again with the same `id` it is stored once.
 */
export async function send({ id, text, settings: asked }) {
  view.notice.value = null;
  const shown = view.conversation.peek();
  if (view.followed.peek() && !shown) throw new Error("This conversation is still being fetched.");
  const { from = null, at = null } = view.branching.peek() ?? {};
  let parent = from ?? view.tip.peek();
  let owner = idOfShown();
  if (!owner) {
    const instructions = instructionsWritten();
    begun ??= await api.create({ messages: instructions ? [{ role: "system", text: instructions }] : [] });
    begun = await api.change(begun.id, { settings: settings.peek() });
    owner = begun.id;
    parent = begun.head;
  }
  await settled();
  view.isAtEnd.value = true; // before the events tell of it
  const answer = await api.post(owner, { id, parent, position: at, role: "user", text, replies: api.repliesOf(asked, id) });
  if (begun) forgetInstructions();
  begun = null;
  view.listVersion.value += 1;
  if (owner === idOfShown()) take(owner, answer);
  else if (!view.followed.peek()) {
    const replies = answer.messages.slice(1).map((one) => one.id);
    go(`#${owner}${replies.length > 1 ? `/${replies.join(",")}` : ""}`);
    if (answer.refusal) view.notice.value = inWords(answer.refusal);
  }
}

/**
 * What the server has answered is shown at once, unless one has gone to another conversation; its events tell the same. `end`: the
 * last of the messages, which are a branch then; without it they are a message and replies, several of which stand side by side.
 */
export function take(owner, { messages, refusal = null, end = null }) {
  if (owner !== idOfShown()) return;
  const shown = view.conversation.peek();
  view.notice.value = refusal && inWords(refusal);
  shown.putAll(messages);
  if (end) {
    view.goTo(end, () => document.getElementById(messages[0].id)?.focus({ preventScroll: true }));
    return;
  }
  const replies = messages.filter((message) => message.role === "assistant");
  if (replies.length > 1) {
    view.show(replies[0].id, { isStep: true });
    view.compare(replies.map((reply) => reply.id));
  } else {
    view.goTo((replies[0] ?? messages.at(-1)).id);
  }
}

/** Four drafts of one short reply, side by side, in a new conversation. */
export const playBranching = () =>
  attempt(() => send({ id: newId(), text: "Write one sentence about the sea.", settings: { ...readSettings(), n: 4, max_tokens: 60 } }));

/** A new version of a message beside it; whether it is there. */
export const edit = (message, text) =>
  attempt(async () => {
    if (text === message.text) return;
    const owner = idOfShown();
    const id = newId();
    await settled();
    const replies = message.role === "user" ? api.repliesOf(readSettings(), id) : undefined;
    take(owner, await api.post(owner, { id, parent: message.parent, role: message.role, text, replies }));
  });

/** Further replies beside those there are; drawn as the conversation says, but for what is `asked` otherwise. */
export const regenerate = (message, asked = {}) =>
  attempt(async () => {
    const owner = idOfShown();
    const below = message.role === "user" ? message.id : message.parent;
    await settled();
    take(owner, await api.reply(owner, below, api.repliesOf({ ...readSettings(), ...asked }, newId())));
  });

/**
 * One more reply, which begins with all of this one's text; `from`: up to `position`, in characters, and with `append` behind
 * that.
 *
 * @param {{id: string}} message
 * @param {{position?: number, append?: string}} from
 */
export const goOn = (message, from = {}) =>
  attempt(async () => {
    const owner = idOfShown();
    await settled();
    const replies = api.repliesOf({ ...readSettings(), n: 1 }, newId());
    take(owner, await api.reply(owner, message.id, { ...replies, continue: true, ...from }));
  });

/** The next message goes below this one: of a reply that is being written, below what is written of it now. */
export function branch({ id, status, text }) {
  const at = status === "running" ? characters(text).length : null;
  view.branchFrom({ id }, at);
}

export const stop = (message) => attempt(() => api.stop(idOfShown(), message.id));

/** Whether the text is in the clipboard. */
export const copy = (message) => copied(message.text);

/** Copy the address of a message. */
export const copyLink = (message) => copied(`${location.origin}${location.pathname}#${idOfShown()}/${message.id}`);

const copied = (text) => attempt(() => copyText(text).then(() => view.say("Copied.")));

/** Save the branch that is shown ("markdown", "html") or the whole conversation ("json") as a file. */
export const save = (format) =>
  attempt(async () => {
    const { id, title } = view.conversation.peek().info;
    const text = await api.exported(id, format, view.tip.peek());
    saveText(format === "html" ? await dressed(text) : text, fileName(title, format === "markdown" ? "md" : format));
  });
