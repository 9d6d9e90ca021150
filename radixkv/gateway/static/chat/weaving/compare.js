// Branches side by side: what they share, once, and each one's own part on a card.

import { Component, html } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { stop } from "../conversation/actions.js";
import { excerpt } from "../conversation/conversation.js";
import { costs } from "../conversation/counting.js";
import { compareInstead, compared, conversation, endCompare } from "../conversation/view.js";
import { Difference } from "../text/difference.js";
import { Markdown } from "../text/markdown.js";
import { chooseBranches } from "./choosing.js";
import { commonBeginning, differing, shared } from "./comparing.js";

const LONG = 900; // characters of a branch's own part, from which on each has a column that scrolls

/** Cards for the branches that are compared: a grid of short ones, columns of long ones. */
export class Compare extends Component {
  state = { marks: false };
  #isLong = false; // it stays so while texts grow

  componentDidMount() {
    addEventListener("keydown", this.onKey);
  }

  componentWillUnmount() {
    removeEventListener("keydown", this.onKey);
  }

  onKey = ({ key, target, ctrlKey, metaKey, altKey }) => {
    if (key !== "d" || ctrlKey || metaKey || altKey || target.matches("input, textarea, select")) return;
    if (!document.querySelector("dialog[open], :popover-open")) this.turn();
  };

  turn = () => this.setState({ marks: !this.state.marks });

  render(_, { marks }) {
    const shown = conversation.value;
    const tips = compared.value ?? [];
    if (!shown?.shape.value || !tips.length) return null;
    const above = shared(shown, tips);
    const level = above ? shown.lineage(above.id).length : 0;
    const own = tips.map((tip) => shown.lineage(tip).slice(level).map((message) => shown.cell(message.id).value));
    const firsts = own.map(([message]) => (message?.role === "assistant" ? message.text : ""));
    const common = commonBeginning(firsts);
    const differs = differing(own.map((messages) => messages.findLast(({ role }) => role === "assistant")?.details?.settings ?? {}));
    this.#isLong ||= own.some((messages) => messages.reduce((sum, { text }) => sum + text.length, -common.length) > LONG);
    return html`
      <section class="compare" aria-label="Branches side by side">
        <div class="compare-head">
          <h2>${tips.length} branches side by side</h2>
          <div class="choices">
            <button title="To the conversation, as it was (Esc)" onClick=${() => endCompare()}>Back</button>
            <button aria-pressed=${marks} title="Mark the words in which the others differ from the first (d)" onClick=${this.turn}>Differences</button>
            <button onClick=${chooseBranches}>Choose branches</button>
          </div>
        </div>
        ${above && html`<p class="shared-part soft">All go on from: “${excerpt(above.text, 200)}”</p>`}
        ${common &&
        html`<div class="common" role="region" tabindex="0" aria-label="What all begin with"><p class="soft small">All begin with:</p><${Markdown} text=${common} /></div>`}
        <div class=${`columns ${this.#isLong ? "long" : "short"}`}>
          ${own.map((messages, index) => html`<${Card} key=${tips[index]} tip=${tips[index]} number=${index + 1} messages=${messages}
            base=${marks && index ? own[0] : null} common=${common.length} differs=${differs[index]} isLong=${this.#isLong}
            onDrop=${tips.length > 2 ? () => compareInstead(tips.toSpliced(index, 1)) : null} />`)}
        </div>
      </section>
    `;
  }
}

/** `base`: the messages that its own are compared with, or null; `common`: characters of the first that all begin with. */
function Card({ tip, number, messages, base, common, differs, isLong, onDrop }) {
  const last = messages.at(-1);
  const scrolls = isLong ? { tabindex: 0, role: "region", "aria-label": `Text of branch ${number}` } : {};
  return html`
    <div class="column" role="group" aria-label=${`Branch ${number}`}>
      <p class="column-head soft small"><kbd aria-hidden="true">${number}</kbd><span class="differs">${differs}</span>
        ${onDrop && html`<button class="bare icon-button" aria-label=${`Take branch ${number} out`} title="Take it out" onClick=${onDrop}><${Icon} name="x" /></button>`}</p>
      <div class="column-body" ...${scrolls}>
        ${messages.map((message, index) => html`<${Part} key=${message.id} message=${message} before=${base?.[index]} common=${index ? 0 : common} />`)}
        ${!messages.length && html`<p class="soft">Nothing of its own: the others go on from its end.</p>`}
      </div>
      <div class="column-foot">
        <button class="bare keep" onClick=${() => endCompare(tip)}>Go on with this one</button>
        ${last?.status === "running" && html`<button class="bare" onClick=${() => stop(last)}><${Icon} name="square" />Stop</button>`}
      </div>
    </div>
  `;
}

function Part({ message, before, common }) {
  const { role, status, details, error } = message;
  const text = message.text.slice(common);
  const isCompared = before?.role === role && status !== "running" && before.status !== "running";
  const marked = isCompared && html`<${Difference} before=${before.text.slice(common)} after=${text} />`;
  if (role !== "assistant") return html`<div class="own">${marked || html`<div class="plain" dir="auto">${excerpt(text, 2000)}</div>`}</div>`;
  return html`
    <div class=${common ? "said cut" : "said"}>
      ${marked || html`<${Markdown} text=${text} />`}
      ${status === "failed" && html`<p class="notice danger">${error ?? "This reply broke off."}</p>`}
      <p class="soft small numbers">${status === "running" ? "writing" : costs(details).join(" · ")}</p>
    </div>
  `;
}
