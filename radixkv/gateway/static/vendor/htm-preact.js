// Preact, its hooks, signals and htm as one module over one instance of Preact. This file is ours.
import { h } from "./preact.js";
import htm from "./htm.js";

export * from "./preact.js";
export * from "./preact-hooks.js";
export { Signal, batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "./signals.js";
export const html = htm.bind(h);
