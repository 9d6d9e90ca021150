// The tree page: what the cache service holds, live.

import { call, showHeader } from "../page.js";
import { Drawing, ZOOM_STEP } from "./canvas.js";
import { GaugeCards } from "./gauges.js";
import { walk } from "./keys.js";
import { TreeList } from "./list.js";
import { Panel } from "./panel.js";
import * as state from "./state.js";
import { EvictSome, Legend, SearchBox, ViewButtons } from "./tools.js";
import { capital, count } from "./words.js";
import { Pools, Workers } from "./workers.js";
import { effect, html, render, signal, useEffect, useRef } from "../vendor/htm-preact.js";

const HELLO = [{ role: "user", content: "Hello" }];

const { tree, select, say } = state;
const model = signal("MODEL");
let drawing = null;

/** For the measurements of the tests. */
export const view = { tree, get drawing() { return drawing; } };

function nextFound() {
  const ids = state.found.value;
  const found = tree.order.filter((node) => ids?.has(node.id));
  const behind = tree.order.slice(tree.order.indexOf(state.selected.value) + 1);
  if (found.length) choose(behind.find((node) => ids.has(node.id)) ?? found[0]);
}

/** Choose a node, and see it. */
function choose(node) {
  select(node);
  if (node && !state.isList.value) drawing.show(node);
}

const placed = signal(null);

/** Choose the node that the address names, once the tree is known. */
async function route() {
  placed.value = await state.placeOf(location.hash);
}

function choosePlaced() {
  tree.turn.value;
  const node = drawing && tree.nodes.get(placed.value);
  if (!node) return;
  placed.value = null;
  choose(node);
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const selected = state.selected.value;
  const zooms = { "+": ZOOM_STEP, "=": ZOOM_STEP, "-": 1 / ZOOM_STEP };
  if (zooms[event.key]) drawing.zoom(zooms[event.key]);
  else if (event.key === "0") drawing.fit();
  else if (event.key === "/") document.getElementById("search-text").focus();
  else if (event.key === "Enter" && selected) document.getElementById("panel-title")?.focus();
  else if (event.key === "Escape") select(null);
  else {
    const node = walk(tree, selected, event.key);
    if (!node) return;
    choose(node);
  }
  event.preventDefault();
}

function closePanel() {
  select(null);
  document.getElementById("drawing")?.focus();
}

function App() {
  tree.turn.value;
  state.tick.value;
  const now_s = tree.now_s();
  const [isList, selected] = [state.isList.value, state.selected.value];
  if (state.refusal.value) return html`<${Refusal} error=${state.refusal.value} />`;
  return html`<h1 class="hidden-text">The tree of the cache</h1>
    <${Notice} />
    <div class="cards"><${GaugeCards} gauges=${state.gauges} /></div>
    <${Workers} isOperator=${Boolean(state.hello.value?.is_operator)} />
    <div class="tools">
      <${Pools} />
      <${SearchBox} onFound=${(ids) => (state.found.value = ids)} onNext=${nextFound} say=${say} />
      <${ViewButtons} isList=${isList} onList=${(wants) => (state.isList.value = wants)} onFit=${() => drawing.fit()}
        onZoom=${(step) => drawing.zoom(ZOOM_STEP ** step)} />
      ${state.hello.value?.is_operator && html`<${EvictSome} say=${say} />`}
      <${Legend} />
    </div>
    <div class="stage">
      <section class="plane" aria-label="The tree">
        <${Canvas} isHidden=${isList} />
        ${isList && html`<${TreeList} ...${{ tree, now_s, selected, onSelect: choose, wantLabels: state.wantLabels }} />`}
        ${tree.isListed.value && !tree.numNodes && html`<${Empty} />`}
        <${Status} />
      </section>
      <aside class="panel" aria-label="The chosen node"
        onKeyDown=${(event) => event.key === "Escape" && event.target.closest("dialog") === null && closePanel()}>
        <${Panel} key=${selected?.id} node=${selected} onClose=${closePanel} onSelect=${choose} ...${{ tree, now_s, say }} />
        <p class=${`said small ${state.said.value.isBad ? "bad" : ""}`} role="status">${state.said.value.text}</p>
      </aside>
    </div>`;
}

function Canvas({ isHidden }) {
  const canvas = useRef(null);
  useEffect(() => {
    drawing = new Drawing(canvas.current, tree, { ...state, onSelect: choose, onBare: state.wantLabels });
  }, []);
  return html`<canvas id="drawing" ref=${canvas} hidden=${isHidden} tabindex="0" role="application" aria-describedby="where"
    aria-label="The radix tree, drawn. Arrow keys walk from node to node; the list tells the same." onKeyDown=${press}></canvas>`;
}

function Status() {
  tree.turn.value;
  return html`<p class="where small">
    <span id="where" aria-live="polite">${state.where.value}</span>
    <span class="count numbers">${count(tree.numNodes, "node")}</span>
    ${state.leftWords().map(([kind, words]) => html`<span class=${`left ${kind}`}>${words}</span>`)}
  </p>`;
}

function Notice() {
  const { state: service, message } = state.status.value;
  const words = state.isLongLost()
    ? "The gateway cannot be reached. What you see is what it told last; it is tried again."
    : ["lost", "no-pool"].includes(service) ? `${message}. What you see is what was told last; it is tried again.` : "";
  return html`<div role="status">${words && html`<p class="notice">${capital(words)}</p>`}</div>`;
}

function Empty() {
  return html`<div class="empty">
    <h2>Nothing is cached yet</h2>
    <p>Every prompt that is computed leaves its branch here. Ask something, for instance:</p>
    <pre>curl -s ${location.origin}/v1/chat/completions --json '${JSON.stringify({ model: model.value, messages: HELLO })}'</pre>
  </div>`;
}

function Refusal({ error }) {
  return html`<div class="empty">
    <h1>The tree cannot be shown</h1>
    <p role="alert">${capital(error.message)}.</p>
    ${error.status === 404 &&
    html`<p>The tree lies in the cache service, which the gateway has to know:</p>
      <pre>radixkv gateway --worker 127.0.0.1:50052 --service 127.0.0.1:50051</pre>
      <p><code>radixkv up</code> and <code>radixkv worker --http</code> know it by themselves.</p>`}
  </div>`;
}

showHeader();
render(html`<${App} />`, document.getElementById("tree-page"));
state.watch();
effect(() => {
  if (tree.isListed.value) route();
});
effect(choosePlaced);
addEventListener("hashchange", route);
call("GET", "/v1/models").then(({ data }) => (model.value = data[0].id)).catch(() => {});
