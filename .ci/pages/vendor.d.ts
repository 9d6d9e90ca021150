// What the type check knows of the libraries below static/vendor: of those that the pages are built on the types that are
// published with them, of the others nothing.

declare module "*/vendor/htm-preact.js" {
  export * from "preact";
  export * from "preact/hooks";
  export { Signal, batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
  export function html(strings: TemplateStringsArray, ...values: any[]): any;
}
declare module "*/vendor/eventsource-parser.js" {
  export * from "eventsource-parser";
}
