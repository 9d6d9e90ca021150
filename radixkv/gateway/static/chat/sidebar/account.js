// Who one is to this server, what one may ask for, and what one has used.

import { html, signal } from "../../vendor/htm-preact.js";
import { ask } from "../../dialog.js";
import { Icon } from "../../icons.js";
import { askForKey, call, forgetKey, hasKey } from "../../page.js";
import { attempt } from "../conversation/actions.js";

const DRAFTS = "radixkv.draft.";
const MIB = 1024 * 1024;
const KINDS = { requests: "requests a minute", tokens: "computed tokens a minute" };
const STORED = { conversations: "Conversations", responses: "Responses", jobs: "Files and batches" };

const me = signal(null);

/** Ask the server who one is; it asks for a key where it needs one. */
export async function learnMe() {
  me.value = await call("GET", "/v1/radixkv/me");
}

/** It bears one's name, once that is known. */
export function AccountButton() {
  const name = me.value?.needs_key ? me.value.name : "Account";
  return html`<button class="bare small account" aria-label=${`Account${me.value?.needs_key ? `: ${name}` : ""}`} onClick=${showAccount}>
    <${Icon} name="circle-user" /><span>${name}</span></button>`;
}

const showAccount = () =>
  attempt(async () => {
    await learnMe();
    await ask("account-title", (close) => html`<${Account} told=${me.value} close=${close} />`);
  });

function Account({ told, close }) {
  const { name, needs_key: needsKey, is_operator: isOperator, num_running: running } = told;
  return html`
    <h2 id="account-title">${needsKey ? name : "Account"}</h2>
    <p>${needsKey
      ? html`This server knows you by your key as <strong>${name}</strong>. ${isOperator ? "You are an operator: you see what everybody has cached." : "You see what is yours alone."}`
      : "This server asks nobody for a key. Whoever reaches it sees the same conversations."}</p>
    <dl class="facts">
      <${Rates} told=${told} />
      <div><dt>Under way now</dt><dd class="numbers">${running.toLocaleString()}${told.limits.max_concurrent ? ` of ${told.limits.max_concurrent.toLocaleString()} at once` : ""}</dd></div>
      ${Object.entries(STORED).map(([kind, label]) => html`<${Stored} label=${label} kept=${told[kind]} />`)}
    </dl>
    <div class="choices">
      ${needsKey && html`<button onClick=${() => changeKey(close)}>Change the key</button>`}
      ${hasKey() && html`<button onClick=${signOut}>Sign out</button>`}
      <button class="main" autofocus onClick=${() => close()}>Close</button>
    </div>
    ${hasKey() && html`<p class="soft small">Signing out removes the key and what you have not sent from this browser. What is on the server stays.</p>`}
  `;
}

/** What is left of what one may ask for. */
function Rates({ told }) {
  if (!told.rates.length) return html`<div><dt>Limits a minute</dt><dd>none</dd></div>`;
  return told.rates.map(({ kind, limit, remaining }) => html`<div><dt>Left of ${limit.toLocaleString()} ${KINDS[kind] ?? kind}</dt>
    <dd class="numbers"><meter min="0" max=${limit} value=${remaining} aria-hidden="true"></meter> ${remaining.toLocaleString()}</dd></div>`);
}

function Stored({ label, kept }) {
  const { number, size_bytes: size, max_number: most, max_bytes: mostBytes } = kept;
  const bytes = `${(size / MIB).toFixed(1)} of ${Math.round(mostBytes / MIB).toLocaleString()} MiB`;
  const share = Math.max(size / mostBytes, most ? number / most : 0);
  return html`<div><dt>${label}</dt><dd class="numbers"><meter min="0" max="1" value=${share} aria-hidden="true"></meter>
    ${` ${number.toLocaleString()}${most ? ` of ${most.toLocaleString()}` : ""}, ${bytes}`}</dd></div>`;
}

async function changeKey(close) {
  close();
  if (await askForKey()) location.reload(); // what is shown is another one's
}

/** Forget in this browser who one is and what one has not sent. */
function signOut() {
  forgetKey();
  for (const name of Object.keys(localStorage)) if (name.startsWith(DRAFTS)) localStorage.removeItem(name);
  location.replace(location.pathname);
}
