// What the server is asked about conversations; see the README for the routes.

import { call, callText, follow } from "../../page.js";
import { replyIds } from "./conversation.js";

const ROOT = "/v1/radixkv/conversations";
const PINS = "/v1/radixkv/pins";
const INSTRUCTIONS = "/v1/radixkv/instructions";

/** Conversations by what was changed last: `{conversations, has_more}`. */
export const list = (query) => call("GET", `${ROOT}?${new URLSearchParams(query)}`);

export const tags = () => call("GET", `${ROOT}/tags`);
export const create = (values) => call("POST", ROOT, values);
export const change = (id, values) => call("PATCH", `${ROOT}/${id}`, values);
export const bulk = (ids, action, tag) => call("POST", `${ROOT}/bulk`, { ids, action, tag });
export const exported = (id, format, leaf) => callText("GET", `${ROOT}/${id}/export?format=${format}${leaf ? `&leaf=${leaf}` : ""}`);
export const importBatch = (entries) => call("POST", `${ROOT}/import`, entries);

/** All that happens in a conversation, from a snapshot on; see `follow`. */
export const events = (id, options) => follow(`${ROOT}/${id}/events`, options);

export const reply = (id, message, replies) => call("POST", `${ROOT}/${id}/messages/${message}/replies`, replies);
export const stop = (id, message) => call("POST", `${ROOT}/${id}/messages/${message}/stop`);
/** Give a message a star or a name: `{starred, name}`; what is left out stays. */
export const mark = (id, message, change) => call("PATCH", `${ROOT}/${id}/messages/${message}`, change);
export const throwBranch = (id, message) => call("POST", `${ROOT}/${id}/messages/${message}/trash`, {});
export const restoreBranch = (id, message) => call("POST", `${ROOT}/${id}/messages/${message}/restore`, {});
/** The branches of a conversation that were thrown away: `{branches: [{message, trashed, num_messages}]}`. */
export const thrown = (id) => call("GET", `${ROOT}/${id}/trash`);
/** Of branches by their last messages: their tokens, and how many of these are cached now. */
export const costs = (id, messages) => call("POST", `${ROOT}/${id}/costs`, { messages });
export const retell = (id, branch) => call("POST", `${ROOT}/${id}/branches`, branch);
export const alternatives = (id, message, position) => call("POST", `${ROOT}/${id}/messages/${message}/alternatives`, { position });
export const removeThrown = (id, message) => call("DELETE", `${ROOT}/${id}/trash/${message}`);

// -- pins of branches

const branch = (conversation, message) => ({ branch: { conversation, message } });

export const pins = () => call("GET", PINS);
export const pin = (id, message, ttl_s) => call("POST", PINS, { ...branch(id, message), ttl_s });
export const unpin = (id, message) => call("DELETE", PINS, branch(id, message));

// -- instructions under names

/** `{instructions: [{name, text}]}`, by name. */
export const instructions = () => call("GET", INSTRUCTIONS);
export const keepInstructions = (name, text) => call("POST", INSTRUCTIONS, { name, text });
export const deleteInstructions = (name) => call("DELETE", INSTRUCTIONS, { name });

// -- messages

/**
 * Store a message and begin the replies that it asks for. One that is stored although no reply could be begun counts as sent:
 * `refusal` is then why there is none.
 */
export async function post(id, message) {
  try {
    return await call("POST", `${ROOT}/${id}/messages`, message);
  } catch (error) {
    if (!error.status) throw error;
    const { messages } = await call("GET", `${ROOT}/${id}`);
    const stored = messages.find((one) => one.id === message.id);
    if (!stored) throw error;
    return { messages: [stored], refusal: error };
  }
}

/** How replies are asked for, as the server takes it; their ids follow from `id`, so that asking twice gives no more of them. */
export function repliesOf({ n = 1, ...chosen }, id) {
  const settings = Object.entries(chosen).filter(([, value]) => value != null);
  return { n, ids: replyIds(id, n), ...Object.fromEntries(settings) };
}
