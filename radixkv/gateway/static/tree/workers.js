// The workers that the gateway serves, where there are several: what each has to do, and how old its report is.

import { call } from "../page.js";
import { count, span } from "./words.js";
import { html, useEffect, useState } from "../vendor/htm-preact.js";

const PERIOD_MS = 5000;

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
