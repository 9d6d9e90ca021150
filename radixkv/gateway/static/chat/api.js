// What the server is asked about conversations; see the README for the routes.

import { call, callText, follow } from "../page.js";
import { replyIds } from "./conversation.js";

const ROOT = "/v1/radixkv/conversations";

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
export const removeMessage = (id, message) => call("DELETE", `${ROOT}/${id}/messages/${message}`);

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
