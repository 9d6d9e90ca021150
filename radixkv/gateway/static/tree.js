// The tree page: what the cache service holds, live.

import { call, follow, showHeader } from "./page.js";
import { Drawing, ZOOM_STEP } from "./tree-canvas.js";
import { GaugeCards, Gauges } from "./tree-gauges.js";
import { walk } from "./tree-keys.js";
import { TreeList } from "./tree-list.js";
import { Tree } from "./tree-model.js";
import { Panel } from "./tree-panel.js";
import { EvictSome, Legend, SearchBox, ViewButtons } from "./tree-tools.js";
import { count, describe, span } from "./tree-words.js";
import { html, render, useEffect, useRef } from "./vendor/htm-preact.js";

const CACHE = "/v1/radixkv/cache";
const TICK_MS = 500;
const LABELS_AT_ONCE = 500;
const LABELS_SETTLE_MS = 120;
const LONG_LOST_MS = 1500;
const LEFT_TOLD_MS = 30_000;

const HELLO = [{ role: "user", content: "Hello" }];

const tree = new Tree();
const gauges = new Gauges();
const still = matchMedia("(prefers-reduced-motion: reduce)");
const page = {
  hello: null,
  link: "waiting",
  lostAt_ms: 0,
  status: { state: "waiting", message: "" },
  refusal: null,
  selected: null,
  where: "",
  said: { text: "", isBad: false },
  isList: false,
  left: { count: 0, at_ms: 0 },
  model: "MODEL",
};
let drawing = null;
let isDue = false;

/** For the measurements of the tests. */
export const view = { tree, page, get drawing() { return drawing; } };

function show() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    render(html`<${App} />`, document.getElementById("tree-page"));
  });
}

function say(text, isBad = false) {
  page.said = { text, isBad };
  show();
}

// -- what the server tells

const heard = {
  hello(told) {
    if (page.hello?.run !== told.run) page.selected = null;
    page.hello = told;
  },
  status(told) {
    page.status = told;
  },
  points(told) {
    gauges.add(told);
  },
  gone({ ids }) {
    noteLeft(tree.leave(ids, !still.matches));
    drawing?.changed();
  },
  tree(told) {
    noteLeft(told.gone.filter((id) => tree.nodes.has(id) && !tree.nodes.get(id).goneAt_ms).length);
    if (!tree.apply(told, !still.matches)) return;
    keepSelected();
    drawing?.changed();
  },
};

/** What was chosen stays chosen, also when it is there no more; then it is drawn no more. */
function keepSelected() {
  const known = page.selected && tree.nodes.get(page.selected.id);
  page.selected = known ?? page.selected;
  if (drawing) drawing.selected = known ?? null;
}

function noteLeft(number) {
  if (!number) return;
  const isRecent = performance.now() - page.left.at_ms < 2000;
  page.left = { count: number + (isRecent ? page.left.count : 0), at_ms: performance.now() };
}

async function watch() {
  const onEvent = (name, data) => {
    heard[name]?.(data);
    show();
  };
  const onState = (link) => {
    if (link === "lost" && page.link !== "lost") page.lostAt_ms = performance.now();
    page.link = link;
    show();
  };
  try {
    await follow(`${CACHE}/events`, { onEvent, onState, signal: new AbortController().signal });
  } catch (error) {
    page.refusal = error;
    show();
  }
}

// -- the text of what is to be seen

const wanted = new Set();
const asked = new Set();
let asking = null;

function wantLabels(nodes) {
  for (const node of nodes) if (!asked.has(node.id)) wanted.add(node.id);
  if (wanted.size) asking ??= setTimeout(askForLabels, LABELS_SETTLE_MS);
}

async function askForLabels() {
  const ids = [...wanted].slice(0, LABELS_AT_ONCE);
  for (const id of ids) {
    wanted.delete(id);
    asked.add(id);
  }
  try {
    const { labels } = await call("POST", `${CACHE}/labels`, { ids });
    for (const [id, label] of Object.entries(labels)) {
      const node = tree.nodes.get(Number(id));
      if (node) node.label = label;
    }
    if (page.selected) page.where = describe(page.selected, tree.now_s());
  } catch (error) {
    if (error.status) say(error.message, true);
  }
  for (const id of ids) asked.delete(id);
  asking = wanted.size ? setTimeout(askForLabels, LABELS_SETTLE_MS) : null;
  drawing?.draw();
  show();
}

// -- choosing

function select(node) {
  page.selected = node ?? null;
  page.where = node ? describe(node, tree.now_s()) : "";
  if (node && node.label === null) wantLabels([node]);
  drawing.selected = page.selected;
  if (node && !page.isList) drawing.show(node);
  drawing.draw();
  show();
}

function nextFound() {
  const found = tree.order.filter((node) => drawing.found?.has(node.id));
  if (!found.length) return;
  const behind = tree.order.slice(tree.order.indexOf(page.selected) + 1);
  select(behind.find((node) => drawing.found.has(node.id)) ?? found[0]);
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const zooms = { "+": ZOOM_STEP, "=": ZOOM_STEP, "-": 1 / ZOOM_STEP };
  if (zooms[event.key]) drawing.zoom(zooms[event.key]);
  else if (event.key === "0") drawing.fit();
  else if (event.key === "/") document.getElementById("search-text").focus();
  else if (event.key === "Enter" && page.selected) document.getElementById("panel-title")?.focus();
  else if (event.key === "Escape") select(null);
  else {
    const node = walk(tree, page.selected, event.key);
    if (!node) return;
    select(node);
  }
  event.preventDefault();
}

function closePanel() {
  select(null);
  document.getElementById("drawing")?.focus();
}

// -- the page

function App() {
  const now_s = tree.now_s();
  const isEmpty = tree.isListed && !tree.numNodes;
  if (page.refusal) return html`<${Refusal} error=${page.refusal} />`;
  return html`<h1 class="hidden-text">The tree of the cache</h1>
    <${Notice} />
    <div class="cards"><${GaugeCards} gauges=${gauges} /></div>
    <div class="tools">
      <${SearchBox} onFound=${(ids) => ((drawing.found = ids), drawing.draw())} onNext=${nextFound} say=${say} />
      <${ViewButtons} isList=${page.isList} onList=${toList} onFit=${() => drawing.fit()}
        onZoom=${(step) => drawing.zoom(ZOOM_STEP ** step)} />
      ${page.hello?.is_operator && html`<${EvictSome} say=${say} />`}
      <${Legend} />
    </div>
    <div class="stage">
      <section class="plane" aria-label="The tree">
        <${Canvas} isHidden=${page.isList} />
        ${page.isList && html`<${TreeList} ...${{ tree, now_s, selected: page.selected, onSelect: select, wantLabels }} />`}
        ${isEmpty && html`<${Empty} />`}
        <${Status} />
      </section>
      <aside class="panel" aria-label="The chosen node"
        onKeyDown=${(event) => event.key === "Escape" && event.target.closest("dialog") === null && closePanel()}>
        <${Panel} key=${page.selected?.id} node=${page.selected} onClose=${closePanel} onSelect=${select}
          ...${{ tree, now_s, say }} />
        <p class=${`said small ${page.said.isBad ? "bad" : ""}`} role="status">${page.said.text}</p>
      </aside>
    </div>`;
}

function toList(isList) {
  page.isList = isList;
  show();
}

function Canvas({ isHidden }) {
  const canvas = useRef(null);
  useEffect(() => {
    drawing = new Drawing(canvas.current, tree, { onSelect: select, onBare: wantLabels });
  }, []);
  return html`<canvas id="drawing" ref=${canvas} hidden=${isHidden} tabindex="0" role="application" aria-describedby="where"
    aria-label="The radix tree, drawn. Arrow keys walk from node to node; the list tells the same." onKeyDown=${press}></canvas>`;
}

function Status() {
  const { left } = page;
  const ago_ms = performance.now() - left.at_ms;
  return html`<p class="where small">
    <span id="where" aria-live="polite">${page.where}</span>
    <span class="count numbers">${count(tree.numNodes, "node")}</span>
    ${left.count > 0 && ago_ms < LEFT_TOLD_MS &&
    html`<span class="left">${count(left.count, "node")} left the tree ${span(ago_ms / 1000)} ago</span>`}
  </p>`;
}

function Notice() {
  const isLongLost = page.link === "lost" && performance.now() - page.lostAt_ms > LONG_LOST_MS;
  const words = isLongLost
    ? "The gateway cannot be reached. What you see is what it told last; it is tried again."
    : ["lost", "no-pool"].includes(page.status.state)
      ? `${page.status.message}. What you see is what was told last; it is tried again.`
      : "";
  return html`<div role="status">${words && html`<p class="notice">${words[0].toUpperCase() + words.slice(1)}</p>`}</div>`;
}

function Empty() {
  return html`<div class="empty">
    <h2>Nothing is cached yet</h2>
    <p>Every prompt that is computed leaves its branch here. Ask something, for instance:</p>
    <pre>curl -s ${location.origin}/v1/chat/completions --json '${JSON.stringify({ model: page.model, messages: HELLO })}'</pre>
  </div>`;
}

function Refusal({ error }) {
  return html`<div class="empty">
    <h1>The tree cannot be shown</h1>
    <p role="alert">${error.message[0].toUpperCase() + error.message.slice(1)}.</p>
    ${error.status === 404 &&
    html`<p>The tree lies in the cache service, which the gateway has to know:</p>
      <pre>radixkv gateway --worker 127.0.0.1:50052 --service 127.0.0.1:50051</pre>
      <p><code>radixkv up</code> and <code>radixkv worker --http</code> know it by themselves.</p>`}
  </div>`;
}

showHeader();
show();
watch();
call("GET", "/v1/models").then(({ data }) => (page.model = data[0].id)).catch(() => {});
setInterval(() => {
  if (document.hidden) return;
  if (tree.sweep()) {
    keepSelected();
    drawing?.changed();
  }
  drawing?.draw();
  show();
}, TICK_MS);
