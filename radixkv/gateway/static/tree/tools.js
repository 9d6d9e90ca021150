// What stands above the drawing: search, zoom, drawing or list, the signs and what they mean, and room for an operator to make.

import { call } from "../page.js";
import { ofPool } from "./state.js";
import { count } from "./words.js";
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";

const SETTLE_MS = 300;

/** `onFound(ids)` gets a set of ids, or null where nothing is searched for; `onNext` goes to the next one found. */
export function SearchBox({ onFound, onNext, say }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  useEffect(() => {
    let isOver = false;
    const search = async () => {
      if (!text.trim()) return tell(null);
      try {
        return tell(await call("POST", ofPool("search"), { text }));
      } catch (error) {
        return say(error.message, true);
      }
    };
    const tell = (answer) => {
      if (isOver) return;
      setFound(answer);
      onFound(answer && new Set(answer.ids));
    };
    const timer = setTimeout(search, text ? SETTLE_MS : 0);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [text]);
  const submit = (event) => {
    event.preventDefault();
    onNext();
  };
  const told = found && `${count(found.ids.length, "node")}${found.is_complete ? "" : " and perhaps more"}`;
  return html`<form class="search" role="search" onSubmit=${submit}>
    <label class="hidden-text" for="search-text">Search the text of the tree</label>
    <input id="search-text" type="search" placeholder="Search text" value=${text} autocomplete="off"
      onInput=${(event) => setText(event.target.value)} />
    <span class="small soft numbers" role="status">${told}</span>
  </form>`;
}

/** Zoom, and drawing or list. */
export function ViewButtons({ isList, onList, onZoom, onFit }) {
  return html`<div class="buttons" role="group" aria-label="View">
    ${!isList &&
    html`<button onClick=${() => onZoom(1)} aria-label="Zoom in">+</button>
      <button onClick=${() => onZoom(-1)} aria-label="Zoom out">−</button>
      <button onClick=${onFit}>Fit</button>`}
    <button aria-pressed=${isList} onClick=${() => onList(!isList)}>List</button>
  </div>`;
}

/** What colours and signs mean. */
export function Legend() {
  return html`<details class="legend small">
    <summary>What the signs mean</summary>
    <ul>
      <li><i class="sign heat"></i>used just now … half an hour ago or more</li>
      <li><i class="sign in-use"></i>in use; ● and how many sequences stand on it, ○ where they stand below</li>
      <li><i class="sign pinned"></i>pinned; the ring runs down with the time left</li>
      <li><i class="sign tail"></i>tail: a block that is still being filled</li>
      <li><span class="sign"><i class="role user">user</i></span>who speaks; what a template puts around it is left out</li>
      <li><b class="sign mono">×3</b>shared: branches that go on from it</li>
      <li><i class="sign gone"></i>left just now: its sequence ended, or a call evicted it</li>
      <li><i class="sign gone for-room"></i>evicted just now because room was needed</li>
    </ul>
  </details>`;
}

/** An operator's way to make room in the whole pool. */
export function EvictSome({ say }) {
  const [isAsking, ask] = useState(false);
  const dialog = useRef(null);
  useEffect(() => {
    if (isAsking) dialog.current.showModal();
  }, [isAsking]);
  const submit = async (event) => {
    event.preventDefault();
    const num_blocks = Number(new FormData(event.target).get("blocks"));
    dialog.current.close();
    try {
      const told = await call("POST", ofPool("evict"), { num_blocks });
      say(`${count(told.num_blocks, "block")} evicted.`);
    } catch (error) {
      say(error.message, true);
    }
  };
  return html`<button class="danger" onClick=${() => ask(true)}>Make room…</button>
    ${isAsking &&
    html`<dialog ref=${dialog} aria-labelledby="room-title" onClose=${() => ask(false)}>
      <form onSubmit=${submit}>
        <h2 id="room-title">Evict from the whole pool</h2>
        <p>The coldest branches of all namespaces go first; what is in use or pinned stays.</p>
        <p><label for="room-blocks">Blocks</label><br />
          <input id="room-blocks" name="blocks" type="number" min="1" max="2147483647" step="1" defaultValue="64" required /></p>
        <p class="actions"><button class="danger">Evict</button>
          <button type="button" onClick=${() => dialog.current.close()}>Keep</button></p>
      </form>
    </dialog>`}`;
}
