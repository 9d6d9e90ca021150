// The models that are served.

import { computed, signal } from "../../vendor/htm-preact.js";
import { call } from "../../page.js";

/** The model and its adapters, once they are known: `{id, max_model_len, num_parameters, parent}` each. */
export const models = signal([]);
/** The model itself. */
export const model = computed(() => models.value[0] ?? null);

/** Ask the server; without an answer the page does without. */
export async function learnModels() {
  try {
    models.value = (await call("GET", "/v1/models")).data;
  } catch {
    models.value = [];
  }
}

/** @type {[number, string][]} */
const UNITS = [[1e9, "B"], [1e6, "M"], [1e3, "K"]];

/** How many parameters it has, in short; empty where that is not known. */
export function sizeOf({ num_parameters: number }) {
  const [unit, sign] = UNITS.find(([least]) => number >= least) ?? [];
  return unit ? `${Number((number / unit).toPrecision(number < 10 * unit ? 2 : 3))}${sign} parameters` : "";
}
