// The page on the API: what /openapi.json says, as text.

import { html, render } from "../vendor/htm-preact.js";
import { call, showHeader } from "../page.js";

const BOUNDS = [
  ["minimum", "at least"],
  ["exclusiveMinimum", "above"],
  ["maximum", "at most"],
  ["exclusiveMaximum", "below"],
  ["minLength", "characters: at least"],
  ["maxLength", "characters: at most"],
  ["minItems", "items: at least"],
  ["maxItems", "items: at most"],
  ["pattern", "matches"],
];
const MAX_DEPTH = 4;

let definitions = {};

function resolved(schema) {
  return schema?.$ref ? (definitions[schema.$ref.split("/").pop()] ?? {}) : (schema ?? {});
}

/** A schema in a few words: its type and bounds. */
function words(schema, depth = 0) {
  if (schema.$ref) return depth < MAX_DEPTH ? words(resolved(schema), depth + 1) : schema.$ref.split("/").pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const members = schema.anyOf ?? schema.oneOf;
  if (members) return [...new Set(members.map((each) => words(each, depth + 1)))].join(" | ");
  const bounds = BOUNDS.filter(([name]) => schema[name] !== undefined).map(([name, word]) => `${word} ${schema[name]}`);
  const items = schema.type === "array" && schema.items ? ` of ${words(schema.items, depth + 1)}` : "";
  return `${schema.type ?? "any"}${items}${bounds.length ? ` (${bounds.join(", ")})` : ""}`;
}

function Fields({ title, rows }) {
  if (!rows.length) return null;
  return html`<table class="fields">
    <caption class="soft">${title}</caption>
    <tbody>
      ${rows.map(
        ([name, schema, isRequired]) => html`<tr>
          <td><code>${name}</code>${isRequired ? " (required)" : ""}</td>
          <td>${words(schema)}${schema.description ? html`<br /><span class="soft">${schema.description}</span>` : null}</td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

function Route({ method, path, operation }) {
  const parameters = (operation.parameters ?? []).map((each) => [
    each.name,
    { ...each.schema, description: each.description },
    each.required,
  ]);
  const body = resolved(operation.requestBody?.content?.["application/json"]?.schema);
  const required = new Set(body.required ?? []);
  const fields = Object.entries(body.properties ?? {}).map(([name, schema]) => [name, schema, required.has(name)]);
  return html`<details id=${`${method}${path}`}>
    <summary><code><span class="method">${method.toUpperCase()}</span> ${path}</code></summary>
    <p>${operation.description}</p>
    <${Fields} title="In the address" rows=${parameters} />
    <${Fields} title="In the body" rows=${fields} />
  </details>`;
}

function Routes({ told }) {
  const groups = new Map();
  for (const [path, methods] of Object.entries(told.paths))
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), { method, path, operation }]);
    }
  return [...groups].map(
    ([tag, routes]) => html`<section aria-label=${tag}>
      <h2>${tag}</h2>
      ${routes.map((route) => html`<${Route} ...${route} />`)}
    </section>`,
  );
}

showHeader();
const place = document.querySelector("#routes");
try {
  const told = await call("GET", "/openapi.json");
  definitions = told.components?.schemas ?? {};
  place.replaceChildren();
  render(html`<${Routes} told=${told} />`, place);
} catch (error) {
  place.textContent = error.message;
}
