// The model that is served.

import { signal } from "../vendor/htm-preact.js";
import { call } from "../page.js";

/** `{id, max_model_len}`, once it is known. */
export const model = signal(null);

/** Ask the server; without an answer the page does without. */
export async function learnModel() {
  try {
    [model.value] = (await call("GET", "/v1/models")).data;
  } catch {
    model.value = null;
  }
}
