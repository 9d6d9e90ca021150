// A reply that goes on with words of one's own, and then with the model's, if one likes.

import { Component, html } from "../../vendor/htm-preact.js";
import { edit, goOn } from "../conversation/actions.js";
import { pickNothing } from "./picking.js";

const MOST = 1024; // characters that a reply takes to go on with

/** `place`: what was picked. */
export class Writing extends Component {
  first = /[\p{L}\p{N}.,:;!?]$/u.test(this.props.place.kept) ? " " : "";
  state = { text: this.first };

  componentDidMount() {
    this.field.focus();
    this.field.setSelectionRange(this.first.length, this.first.length);
  }

  goOn = () => this.#leave(() => goOn(this.props.message, { position: this.props.place.end, append: this.state.text }));
  keep = () => this.#leave(() => edit(this.props.message, this.props.place.kept + this.state.text));

  async #leave(action) {
    if (this.state.text.trim() && (await action())) pickNothing();
  }

  onKey = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (this.state.text.length <= MOST) this.goOn();
  };

  render(_, { text }) {
    const isLong = text.length > MOST;
    return html`
      <textarea aria-label="Write on from here" rows="3" defaultValue=${this.first} onInput=${({ target }) => this.setState({ text: target.value })}
        onKeyDown=${this.onKey} ref=${(field) => (this.field = field)}></textarea>
      ${isLong && html`<p class="small soft" role="status">The model goes on from up to ${MOST.toLocaleString()} characters at once; this can be kept as it is.</p>`}
      <div class="choices">
        <button class="main" disabled=${isLong || !text.trim()} onClick=${this.goOn}>Let the model go on</button>
        <button disabled=${!text.trim()} onClick=${this.keep}>Keep it like that</button>
      </div>
    `;
  }
}
