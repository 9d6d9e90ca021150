// What every page begins with: the header, light or dark, and calls to the server with the key that it asks for.

import { ask } from "./dialog.js";
import { Icon } from "./icons.js";
import { createParser } from "./vendor/eventsource-parser.js";
import { html, render, signal } from "./vendor/htm-preact.js";

const THEMES = ["system", "light", "dark"];
const KEY = "radixkv.key";
const THEME = "radixkv.theme";
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;
const OUT_OF_SIGHT_MS = 20_000;
const UNREACHABLE = "The server cannot be reached.";

// -- calls

/** Whether the server answered when it was last called. */
export const isReachable = signal(true);

/** A refusal of the server, or that it could not be reached (`status` 0). `message` is for people, `code` for programs. */
export class CallError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The JSON answer of `path`. `body`, if any, is sent as JSON. Asks for a key where one is needed, and calls again. */
export async function call(method, path, body = undefined) {
  const response = await send(method, path, body);
  return response.status === 204 ? null : response.json();
}

/** The answer of `path` as text. */
export async function callText(method, path, body = undefined) {
  return (await send(method, path, body)).text();
}

/**
 * Follow the server-sent events of `path` until `stop` aborts: `onEvent(name, data)` for each, `onState("live" | "lost")` when
 * the connection comes or goes. It comes back by itself, after 0.5 to 8 seconds; a refusal ends it and is thrown. A page that is
 * out of sight gives its connection up, of which a browser has six for all its tabs.
 */
export async function follow(path, { onEvent, onState = (_state) => {}, signal: stop }) {
  let wait_ms = FIRST_WAIT_MS;
  while (!stop.aborted) {
    await untilSeen();
    const sight = watchSight();
    const either = AbortSignal.any([stop, sight.signal]);
    try {
      const response = await send("GET", path, undefined, either);
      onState("live");
      wait_ms = FIRST_WAIT_MS;
      for await (const [name, data] of events(response.body)) onEvent(name, data);
    } catch (error) {
      if (error instanceof CallError && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
      if (!(error instanceof CallError) && !either.aborted) throw error;
    } finally {
      sight.end();
    }
    if (either.aborted) continue;
    onState("lost");
    await new Promise((done) => setTimeout(done, wait_ms * (0.75 + Math.random() / 2)));
    wait_ms = Math.min(wait_ms * 2, LONGEST_WAIT_MS);
  }
}

/** A signal that aborts once the page has been out of sight for a while; `end()` it. */
function watchSight() {
  const controller = new AbortController();
  let timer = 0;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => controller.abort(), OUT_OF_SIGHT_MS);
  };
  const end = () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
  document.addEventListener("visibilitychange", look);
  return { signal: controller.signal, end };
}

function untilSeen() {
  if (!document.hidden) return null;
  return new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const read = [];
  const parser = createParser({ onEvent: ({ event = "message", data }) => read.push([event, JSON.parse(data)]) });
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => {
        isReachable.value = false;
        throw new CallError(0, UNREACHABLE);
      });
      if (done) return;
      parser.feed(value);
      yield* read.splice(0);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function send(method, path, body, stop = undefined) {
  for (;;) {
    const key = localStorage.getItem(KEY);
    /** @type {Record<string, string>} */
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const init = { method, headers, signal: stop, body: body === undefined ? undefined : JSON.stringify(body) };
    let response;
    try {
      response = await fetch(path, init);
    } catch (error) {
      if (stop?.aborted) throw error;
      isReachable.value = false;
      throw new CallError(0, UNREACHABLE);
    }
    isReachable.value = true;
    if (response.status === 401) {
      if (localStorage.getItem(KEY) !== key || (await askForKey(Boolean(key)))) continue; // another call has asked meanwhile
      throw new CallError(401, "This server answers only with an API key.");
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    return new CallError(response.status, error?.message ?? response.statusText, error?.code);
  } catch {
    return new CallError(response.status, `${response.status} ${response.statusText}`);
  }
}

let asking = null;

/** Whether this browser keeps a key. */
export const hasKey = () => Boolean(localStorage.getItem(KEY));

export const forgetKey = () => localStorage.removeItem(KEY);

/** Ask for an API key, once for all calls that wait for one; whether one was given. `isUnknown`: the one sent was refused. */
export function askForKey(isUnknown = false) {
  asking ??= ask("key-title", (close) => keyForm(isUnknown, close)).then((key) => {
    if (key) localStorage.setItem(KEY, key);
    asking = null;
    return Boolean(key);
  });
  return asking;
}

function keyForm(isUnknown, close) {
  const submit = (event) => {
    event.preventDefault();
    close(String(new FormData(event.target).get("key")).trim());
  };
  return html`<form onSubmit=${submit}>
    <h2 id="key-title">${isUnknown ? "The server does not know this key" : "This server needs an API key"}</h2>
    <p>${isUnknown ? "Enter another one." : "Whoever runs the server gives you one."} It is stored in this browser only.</p>
    <p><label for="key-field">Key</label><br /><input id="key-field" name="key" type="password" autocomplete="off" required autofocus
      pattern="\\s*[!-~]+\\s*" title="Letters, digits and signs of ASCII, without spaces" /></p>
    <button class="main">Go on</button> <button type="button" onClick=${() => close()}>Cancel</button>
  </form>`;
}

// -- the header

function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

let theme = localStorage.getItem(THEME) ?? "system";
applyTheme(theme);

const ICONS = { system: "sun-moon", light: "sun", dark: "moon" };
const LINKS = [["/", "Chat"], ["/tree", "Tree"], ["/fragmentation", "Memory"], ["/docs", "API"]];

function Header({ extra }) {
  const turn = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(THEME, theme);
    applyTheme(theme);
    showHeader(extra);
  };
  return html`
    <a class="brand" href="/" aria-label="radixkv, chat"><img src="/static/icon.svg" alt="" /><span>radixkv</span></a>
    <nav aria-label="Pages">
      ${LINKS.map(([path, name]) => {
        const current = location.pathname === path ? "page" : undefined;
        return html`<a href=${path} aria-current=${current}>${name}</a>`;
      })}
    </nav>
    ${extra}
    <button class="bare" onClick=${turn} aria-label=${`Colours: ${theme}. Change`} title=${`Colours: ${theme}`}>
      <${Icon} name=${ICONS[theme]} />
    </button>
  `;
}

/** Fill the page's `<header class="top">`; `extra`: what a page adds to it. */
export function showHeader(extra = null) {
  render(html`<${Header} extra=${extra} />`, document.querySelector("header.top"));
}
