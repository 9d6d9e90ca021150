// One node from near: its text and all above it, its blocks, who stands on it, and what can be done to it.

import { call } from "../page.js";
import { LEFT, capital, count, countdown, span, use } from "./words.js";
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";

const CACHE = "/v1/radixkv/cache";
const SETTLE_MS = 150;
/** The retention priority of what nobody gave another. */
const ORDINARY = 35;
const PIN_TIMES = [
  [300, "5 min"],
  [3600, "1 h"],
];

/** `node` as the tree has it now; `say` tells what came of an action. */
export function Panel({ tree, node, now_s, onClose, onSelect, say }) {
  const [details, reload] = useDetails(node, say);
  const [isAsking, ask] = useState(false);
  if (!node) return html`<${Nothing} />`;
  const act = async (what, path, body) => {
    try {
      const answer = await call("POST", `${CACHE}/nodes/${node.id}/${path}`, body);
      say(what(answer));
    } catch (error) {
      say(error.message, true);
    }
    reload();
  };
  const isGone = Boolean(node.goneAt_ms) || !tree.nodes.has(node.id);
  const pin = (ttl_s, name) =>
    act((told) => `${count(told.num_tokens, "token")} pinned for ${name} from each use.`, "pin", { ttl_s });
  const unpin = (num_tokens) => act(() => `The pin of ${count(num_tokens, "token")} has ended.`, "unpin", { num_tokens });
  const evict = () => act((told) => `${count(told.num_blocks, "block")} evicted.`, "evict", {});
  return html`<div class="panel-head">
      <h2 id="panel-title" tabindex="-1">${node.isTail ? "Tail" : "Node"} at ${node.position.toLocaleString("en")}</h2>
      <button class="bare" onClick=${onClose} aria-label="Close the panel">✕</button>
    </div>
    ${isGone && html`<p class="notice">${capital(LEFT[node.goneAs] ?? "gone")}: it is cached no more.</p>`}
    <${Path} tree=${tree} node=${node} onSelect=${onSelect} />
    <${Facts} node=${node} now_s=${now_s} details=${details} />
    <div class="actions" hidden=${isGone}>
      ${PIN_TIMES.map(([ttl_s, name]) => html`<button onClick=${() => pin(ttl_s, name)}>Pin ${name}</button>`)}
      <button class="danger" onClick=${() => ask(true)}>Evict…</button>
    </div>
    ${isAsking && html`<${Confirm} node=${node} onNo=${() => ask(false)} onYes=${evict} />`}
    <${Pins} pins=${details?.pins ?? []} readAt_ms=${details?.readAt_ms} onUnpin=${unpin} isGone=${isGone} />
    <${Conversations} conversations=${details?.conversations ?? []} />
    <${Texts} details=${details} />`;
}

/** Those whose branches run through the node. */
function Conversations({ conversations }) {
  if (!conversations.length) return null;
  return html`<h3 id="in-chat">In the chat</h3>
    <ul class="in-chat" aria-labelledby="in-chat">
      ${conversations.map(({ id, title, message }) => html`<li><a href=${`/#${id}/${message}`}>${title}</a></li>`)}
    </ul>`;
}

function Nothing() {
  return html`<p class="soft">Choose a node to read its text, see who stands on it, pin or evict it.</p>
    <details class="small soft">
      <summary>With the keyboard</summary>
      <dl class="keys-table">
        <div><dt>→ ←</dt><dd>first branch, parent</dd></div>
        <div><dt>↑ ↓</dt><dd>siblings</dd></div>
        <div><dt>Enter</dt><dd>to this panel, Escape back</dd></div>
        <div><dt>+ − 0</dt><dd>zoom, fit</dd></div>
        <div><dt>/</dt><dd>search</dd></div>
      </dl>
    </details>`;
}

/** What the server tells of the node, once it stays chosen; read again when it changes. */
function useDetails(node, say) {
  const [details, set] = useState(null);
  const [turn, next] = useState(0);
  const version = node && `${node.id} ${node.tokens} ${node.pinnedUntil_s} ${node.position}`;
  useEffect(() => {
    if (!node || node.goneAt_ms) return undefined;
    if (details?.id !== node.id) set(null);
    let isOver = false;
    const timer = setTimeout(async () => {
      try {
        const told = { ...(await call("GET", `${CACHE}/nodes/${node.id}`)), readAt_ms: performance.now(), conversations: [] };
        if (isOver) return;
        set(told);
        const { conversations } = await call("GET", `${CACHE}/nodes/${node.id}/conversations`);
        if (!isOver) set({ ...told, conversations });
      } catch (error) {
        if (!isOver && error.status !== 404) say(error.message, true);
      }
    }, SETTLE_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [version, turn]);
  return [details?.id === node?.id ? details : null, () => next((before) => before + 1)];
}

function Path({ tree, node, onSelect }) {
  const path = tree.pathOf(node);
  return html`<nav class="path small" aria-label="From the root">
    <span class="mono">${node.namespace}</span>
    ${path.slice(-6).map((each, index) => {
      const name = each.position.toLocaleString("en");
      const isCut = !index && path.length > 6;
      return html`<span aria-hidden="true">${isCut ? "…" : "›"}</span>
        <button class="bare" aria-current=${each === node ? "true" : undefined} aria-label=${`Node at ${name}`}
          onClick=${() => onSelect(each)}>${name}</button>`;
    })}
  </nav>`;
}

function Facts({ node, now_s, details }) {
  const facts = [
    ["Tokens", `${node.tokens.toLocaleString("en")}, up to ${(node.position + node.tokens).toLocaleString("en")}`],
    ["Blocks", `${node.blocks.toLocaleString("en")}${blockIds(details)}`],
    ["Used", use(node, now_s)],
    ["Stand on it", `${count(node.sequences, "sequence")}, ${count(details?.pins.length ?? 0, "pin")}`],
    ["Lock refs", node.lockRef],
    ["Below", belowWords(node)],
  ];
  if (node.priority !== ORDINARY) facts.push(["Priority", `${node.priority}${retained(details)}`]);
  return html`<dl class="facts numbers">
    ${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function belowWords({ below, blocks, sequences }) {
  const parts = [[below.nodes - 1, "node"], [below.blocks - blocks, "block"], [below.sequences - sequences, "sequence"]];
  return parts.map(([number, noun]) => count(number, noun)).join(", ");
}

function retained(details) {
  return details?.retained_s ? `, for ${span(details.retained_s)}` : "";
}

function blockIds(details) {
  if (!details) return "";
  const ids = details.block_ids;
  return `: ${ids.slice(0, 6).join(", ")}${ids.length > 6 ? " …" : ""}`;
}

function Pins({ pins, readAt_ms, onUnpin, isGone }) {
  const since_s = (performance.now() - readAt_ms) / 1000;
  return pins.map(
    ({ num_tokens, ttl_s, remaining_s }) => html`<p class="pin-row">
      <span class="pin-sign" aria-hidden="true">◉</span>
      <span><b class="numbers">${countdown(remaining_s - since_s)}</b> left, ${span(ttl_s)} from each use,
        ${count(num_tokens, "token")}</span>
      <button disabled=${isGone} onClick=${() => onUnpin(num_tokens)}>Unpin</button>
    </p>`,
  );
}

function Texts({ details }) {
  if (!details) return html`<p class="soft small">Reading its text…</p>`;
  return html`<h3 id="own-text">Text</h3>
    <pre class="text own" tabindex="0" role="region" aria-labelledby="own-text">${details.text}</pre>
    ${details.above && html`<details><summary>All that stands above it</summary>
      <pre class="text" tabindex="0" role="region" aria-label="Text above">${details.above}</pre></details>`}`;
}

function Confirm({ node, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  const { below } = node;
  const stays = node.lockRef > 0;
  return html`<dialog ref=${dialog} aria-labelledby="evict-title" onClose=${onNo}>
    <h2 id="evict-title">Evict this branch?</h2>
    <p>${count(below.nodes, "node")} with ${count(below.blocks, "block")}: this one and all below it.
      ${stays && " What sequences or pins hold stays."} It is computed again when somebody asks for it.</p>
    <p class="actions">
      <button class="danger" onClick=${() => (dialog.current.close(), onYes())}>Evict</button>
      <button onClick=${() => dialog.current.close()}>Keep</button>
    </p>
  </dialog>`;
}
