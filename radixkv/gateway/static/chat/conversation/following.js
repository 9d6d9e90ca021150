// What the server tells of the conversation that is open, as it happens; two tabs show the same.

import { batch } from "../../vendor/htm-preact.js";
import { paced } from "../shared/pace.js";
import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import * as view from "./view.js";

let stop = null; // ends what is followed now
let told = []; // what the server has told since the page was drawn last

const takeIn = paced(() => {
  const all = told;
  told = [];
  batch(() => {
    for (const [name, data] of all) heard(name, data);
  });
});

/** Open a conversation, instead of the one that is open. */
export async function open(id) {
  leave();
  const own = new AbortController();
  stop = own;
  view.followed.value = id;
  const onState = (state) => (view.isLost.value = state === "lost");
  try {
    await api.events(id, { onEvent, onState, signal: own.signal });
  } catch (error) {
    if (own.signal.aborted) return;
    close({ text: error.status === 404 ? "That conversation is not there any more." : error.message, status: error.status });
  }
}

/** Show none. */
export function leave() {
  stop?.abort();
  stop = null;
  told = [];
  view.leave();
}

/** Show none instead of one that is gone; the way back leads to the one before. */
export function close(notice = null) {
  history.replaceState(null, "", location.pathname);
  leave();
  view.notice.value = notice;
  view.listVersion.value += 1;
}

/** The first one is shown at once, what follows with the frames. */
function onEvent(name, data) {
  if (!view.conversation.peek()) {
    heard(name, data);
    return;
  }
  told.push([name, data]);
  takeIn();
}

function heard(name, data) {
  const shown = view.conversation.peek();
  if (name === "snapshot") heardSnapshot(data);
  else if (!shown) return;
  else if (name === "message") heardMessage(data);
  else if (name === "delta") shown.grow(data);
  else if (name === "conversation") {
    shown.info = data;
    view.listVersion.value += 1;
  } else if (name === "removed") {
    drop(data.ids);
  } else if (name === "deleted") {
    close({ text: "This conversation was deleted." });
  }
}

function heardSnapshot(data) {
  const shown = view.conversation.peek();
  if (!shown) {
    view.conversation.value = new Conversation(data);
    view.arrive({ isFirst: true });
    return;
  }
  shown.load(data);
  const tip = view.tip.peek();
  view.show(shown.has(tip) ? shown.tip(tip) : shown.start(), { keepsBranching: true });
  dropCompared();
}

function heardMessage(message) {
  const shown = view.conversation.peek();
  const before = shown.get(message.id);
  shown.put(message);
  if (before?.status === "running" && message.status !== "running") {
    view.say(message.status === "complete" ? "The reply is there." : "The reply has ended.");
  }
  if (before) return;
  if (message.parent === view.tip.peek()) view.show(message.id, { keepsBranching: true }); // also one that another tab has sent
  const compared = view.compared.peek();
  if (compared?.includes(message.parent)) {
    view.compareInstead(compared.map((one) => (one === message.parent ? message.id : one)));
  }
}

/** Messages are gone: where they were shown, another version is, or what stands above. */
export function drop(ids) {
  const shown = view.conversation.peek();
  const tip = view.tip.peek();
  const gone = new Set(ids);
  const first = shown.lineage(tip).find((message) => gone.has(message.id));
  shown.remove(ids);
  const [next] = first ? shown.siblings(first) : [];
  view.show(first ? (next ? shown.tip(next.id) : first.parent) : tip, { keepsBranching: true });
  dropCompared();
}

function dropCompared() {
  const compared = view.compared.peek();
  const left = compared?.filter((id) => view.conversation.peek()?.has(id)) ?? [];
  if (compared && left.length < compared.length) view.compareInstead(left);
}
