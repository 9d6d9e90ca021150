// A branch told anew: a message of it corrected, other instructions, a later beginning. Its turns are copied as they are written,
// no reply is drawn again; what the next reply will compute is told before.

import { Component, html } from "../../vendor/htm-preact.js";
import { attempt, idOfShown, take } from "../conversation/actions.js";
import * as api from "../conversation/api.js";
import { newId } from "../conversation/conversation.js";
import { inWords } from "../conversation/errors.js";
import { readSettings, settled } from "../conversation/settings.js";
import * as view from "../conversation/view.js";

const PAUSE_MS = 300; // of somebody who writes, before the cost is asked for
const IS_WRITTEN = "A reply of this branch is still being written: stop it, or wait for its end.";

/**
 * The branch that is shown with a change, of what the server takes: `system`, `edit`, `start`; whether it is there now. `asks`: for
 * a reply too, where it ends with a message that has none.
 */
export const retell = (change, { asks = false } = {}) =>
  attempt(async () => {
    const owner = idOfShown();
    await settled();
    const { messages, leaf } = await api.retell(owner, { leaf: view.tip.peek(), id: newId(), ...change });
    take(owner, { messages, end: leaf });
    if (asks && messages.at(-1).role === "user") take(owner, await api.reply(owner, leaf, api.repliesOf(readSettings(), newId())));
  });

/** What the next reply on a branch will compute, in words. */
function inTokens({ prompt_tokens: all, computed_tokens: computed, max_prompt_tokens: most }) {
  if (all === null) return "";
  if (all > most) return `The branch then has ${all.toLocaleString()} tokens; the model reads at most ${most.toLocaleString()}.`;
  if (computed === null) return `The next reply reads ${all.toLocaleString()} tokens; it is not known here how many of them are cached.`;
  return `The next reply computes ${computed.toLocaleString()} of ${all.toLocaleString()} tokens anew; the others are cached.`;
}

const isSame = (change, other) => JSON.stringify(change) === JSON.stringify(other);

/** What a change of the branch that is shown will cost, told whenever it changes. `change`: as for `retell`, or null. */
export class Price extends Component {
  state = { words: "", of: null };

  componentDidMount() {
    this.#askLater(0);
  }

  componentDidUpdate(before) {
    if (!isSame(before.change, this.props.change) || this.isHeld !== this.wasHeld) this.#askLater(PAUSE_MS);
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
    this.asked = null;
  }

  #askLater(wait_ms) {
    clearTimeout(this.timer);
    this.wasHeld = this.isHeld;
    this.asked = this.isHeld ? null : this.props.change;
    if (this.asked) this.timer = setTimeout(() => this.#ask(this.asked), wait_ms);
    else this.setState({ words: "", of: null });
  }

  async #ask(change) {
    const asked = api.retell(idOfShown(), { leaf: view.tip.peek(), ...change, dry_run: true });
    const words = await asked.then(({ cost }) => inTokens(cost), (error) => inWords(error).text);
    if (this.asked === change) this.setState({ words, of: change });
  }

  render({ change }, { words, of }) {
    this.isHeld = view.conversation.value?.cell(view.tip.value)?.value.status === "running";
    const isHeld = change && this.isHeld;
    return html`<span class="price soft small" role="status" aria-busy=${!isHeld && !isSame(change, of)}>${isHeld ? IS_WRITTEN : words}</span>`;
  }
}
