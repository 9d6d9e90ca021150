// The tokens that might have stood at a place of a reply, and how likely each was; a press goes on with one.

import { Component, html } from "../../vendor/htm-preact.js";
import { goOn, idOfShown } from "../conversation/actions.js";
import * as api from "../conversation/api.js";
import { inWords } from "../conversation/errors.js";
import { pickNothing } from "./picking.js";

/** `place`: what was picked; `words`: that, as one reads it. */
export class Alternatives extends Component {
  state = { told: null, trouble: "" };

  async componentDidMount() {
    const { message, place } = this.props;
    try {
      const told = await api.alternatives(idOfShown(), message.id, place.begin);
      this.setState({ told }, () => this.list?.querySelector("button:not(:disabled)")?.focus());
    } catch (error) {
      this.setState({ trouble: inWords(error).text });
    }
  }

  choose = ({ text }) => {
    const { position } = this.state.told;
    pickNothing();
    goOn(this.props.message, { position, append: text });
  };

  onKey = (event) => {
    const chosen = this.state.told.alternatives[Number(event.key) - 1];
    if (!chosen?.text || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.choose(chosen);
  };

  render({ words }, { told, trouble }) {
    if (!told) return html`<p class="small soft" role="status">${trouble || "Looking for other words"}</p>`;
    return html`
      <p class="small soft">Instead of “${words}” the model might go on with one of these:</p>
      <ol class="alternatives" aria-label=${`Instead of “${words}”`} onKeyDown=${this.onKey} ref=${(list) => (this.list = list)}>
        ${told.alternatives.map((one, index) => html`<${Choice} key=${one.token} ...${one} number=${index + 1} isHere=${one.token === told.token}
          onChoose=${() => this.choose(one)} />`)}
      </ol>
    `;
  }
}

function Choice({ number, token, text, logprob, isHere, onChoose }) {
  const share = percent(Math.exp(logprob));
  const name = text === null ? token : text;
  const cannot = text === null ? ", cannot be gone on with" : "";
  return html`<li><button class="bare small" disabled=${text === null} onClick=${onChoose} aria-label=${`${name.trim() || "a blank"}, ${share}${isHere ? ", as it is" : cannot}`}>
    <span aria-hidden="true">${number < 10 && html`<kbd>${number}</kbd>`}</span>
    <span class="mono token" dir="auto">${name.replaceAll(" ", "␣").replaceAll("\n", "⏎")}</span>
    ${isHere && html`<span class="soft">as it is</span>`}
    <span class="likely" aria-hidden="true"><span style=${{ width: `${100 * Math.exp(logprob)}%` }}></span></span>
    <span class="numbers">${share}</span>
  </button></li>`;
}

function percent(probability) {
  if (probability < 0.001) return "< 0.1%";
  return `${(100 * probability).toFixed(probability < 0.1 ? 1 : 0)}%`;
}
