// A field to edit a message in. What stands in it stays until it is sent or cancelled, also while the field is closed.

import { Component, createRef, html } from "../../vendor/htm-preact.js";
import { edit } from "../conversation/actions.js";
import * as view from "../conversation/view.js";
import { Price, retell } from "../weaving/retelling.js";
import { NamedInstructions } from "./named_instructions.js";

const MOST_ROWS = 16;
const edits = new Map(); // what has been written, by message id

/** Whether an edit of the message waits to be gone on with. */
export const isEdited = (id) => edits.has(id);

/** A message to be edited, or instructions that are not there yet. `onClose()`: the field is not needed any more, or not now. */
export class Editor extends Component {
  state = { isSaving: false, text: edits.get(this.props.message.id) ?? this.props.message.text };

  place = createRef();

  get field() {
    return this.place.current;
  }

  componentDidMount() {
    this.field.focus();
    this.field.setSelectionRange(this.field.value.length, this.field.value.length);
  }

  write = ({ target }) => {
    const { id, text } = this.props.message;
    this.setState({ text: target.value });
    if (target.value === text) edits.delete(id);
    else edits.set(id, target.value);
  };

  onKey = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.props.onClose();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.save(this.ways()[0]);
  };

  /** How it can be saved, the usual way first: `{name, save, needsText}` each. */
  ways() {
    const { message } = this.props;
    const isNew = message.role === "user" ? "Send as a new branch" : "Keep as a new version";
    const beside = { name: isNew, save: (text) => edit(message, text), needsText: true };
    const keeping = { name: "Save and keep what follows", save: (text) => retell(this.change(text)), needsText: message.role !== "system" };
    if (!this.numBelow()) return [beside];
    if (message.role !== "system") return [beside, keeping];
    return view.conversation.peek().has(message.id) ? [keeping, beside] : [keeping];
  }

  /** Messages of the branch that is shown below this one. */
  numBelow() {
    const path = view.shownBranch();
    return path.length - 1 - path.findIndex(({ id }) => id === this.props.message.id);
  }

  /** The branch with the message as it is edited; null: as it is. */
  change(text) {
    const { id, role, text: before } = this.props.message;
    if (text === before || (!text && role !== "system")) return null;
    return role === "system" ? { system: text } : { edit: { message: id, text } };
  }

  save = async ({ save, needsText }) => {
    const text = this.field.value.trim();
    if (this.state.isSaving || (needsText && !text)) return;
    this.setState({ isSaving: true });
    if (text === this.props.message.text || (await save(text))) this.cancel();
    else this.setState({ isSaving: false });
  };

  cancel = () => {
    edits.delete(this.props.message.id);
    this.props.onClose();
  };

  render({ name }, { isSaving, text }) {
    const ways = this.ways();
    const numBelow = this.numBelow();
    const follows = numBelow === 1 ? "the message below is copied as it is" : `the ${numBelow} messages below are copied as they are`;
    return html`
      <div class="editor">
        <textarea
          aria-label=${`Edit: ${name}`} rows=${Math.min(MOST_ROWS, 2 + text.split("\n").length)} onKeyDown=${this.onKey} onInput=${this.write}
          ref=${this.place} defaultValue=${text}
        ></textarea>
        ${this.props.message.role === "system" && html`<${NamedInstructions} field=${this.place} />`}
        <div class="choices">
          ${ways.map((way, index) => html`<button class=${index ? "" : "main"} aria-disabled=${isSaving} onClick=${() => this.save(way)}>${way.name}</button>`)}
          <button onClick=${this.cancel}>Cancel</button>
        </div>
        <p class="soft small">What is there now stays as another version.
          ${numBelow > 0 && ` To keep what follows: ${follows}, and no reply is drawn again. `}
          ${numBelow > 0 && html`<${Price} change=${this.change(text.trim())} />`}</p>
      </div>
    `;
  }
}
