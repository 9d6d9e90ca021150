// Where there are several: the pools, of which one is shown, and the workers: what each has to do, and how old its report is.

import { call } from "../page.js";
import { hello, show } from "./state.js";
import { count, span } from "./words.js";
import { html, useEffect, useState } from "../vendor/htm-preact.js";

const PERIOD_MS = 5000;

/** A choice of the pool that is shown; nothing for one pool. */
export function Pools() {
  const [pools, setPools] = useState([]);
  useEffect(() => {
    const read = () => call("GET", "/v1/radixkv/cache/pools").then((told) => setPools(told.pools)).catch(() => {});
    read();
    const timer = setInterval(read, PERIOD_MS);
    return () => clearInterval(timer);
  }, []);
  if (pools.length < 2) return null;
  const shown = hello.value?.key;
  return html`<label class="small" for="pool">Pool that is shown</label>
    <select id="pool" value=${shown} onChange=${(event) => show(event.target.value)}>
      ${pools.map(({ key, pool, service, state }) => html`<option key=${key} value=${key} selected=${key === shown}>
        ${pool} at ${service}${state === "lost" ? " (does not answer)" : ""}</option>`)}
    </select>`;
}

/** A line for each worker; nothing for one worker, and to others than operators. */
export function Workers({ isOperator }) {
  const [workers, setWorkers] = useState([]);
  useEffect(() => {
    if (!isOperator) return undefined;
    const read = () => call("GET", "/v1/radixkv/cache/workers").then((told) => setWorkers(told.workers)).catch(() => {});
    read();
    const timer = setInterval(read, PERIOD_MS);
    return () => clearInterval(timer);
  }, [isOperator]);
  if (workers.length < 2) return null;
  return html`<section class="card workers" aria-labelledby="card-workers">
    <h2 id="card-workers">Workers</h2>
    <ul class="small numbers">
      ${workers.map((worker) => html`<li key=${worker.address}>${worker.address || worker.name}: ${loadWords(worker)}</li>`)}
    </ul>
  </section>`;
}

function loadWords({ load, load_age_s }) {
  if (!load) return "no load reported";
  const words = [`${count(load.num_backlog_tokens, "prompt token")} to compute`, count(load.num_running, "branch", "branches")];
  if (!load.is_accepting) words.push("stopping");
  return `${words.join(", ")} (${span(load_age_s)} ago)`;
}
