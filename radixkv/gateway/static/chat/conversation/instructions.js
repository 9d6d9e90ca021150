// What a new conversation begins with; kept in this browser until there is one.

import { keep } from "./settings.js";

const KEPT = "radixkv.draft.instructions";

export const instructionsWritten = () => localStorage.getItem(KEPT)?.trim() ?? "";
export const keepInstructions = (text) => keep(KEPT, text);
export const forgetInstructions = () => keep(KEPT, "");
