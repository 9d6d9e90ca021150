// A field to edit a message in. What stands in it stays until it is sent or cancelled, also while the field is closed.

import { Component, html } from "../vendor/htm-preact.js";
import { edit } from "./actions.js";

const MOST_ROWS = 16;
const edits = new Map(); // what has been written, by message id

/** Whether an edit of the message waits to be gone on with. */
export const isEdited = (id) => edits.has(id);

/** `onClose()`: the field is not needed any more, or not now. */
export class Editor extends Component {
  state = { isSaving: false };

  componentDidMount() {
    this.field.focus();
    this.field.setSelectionRange(this.field.value.length, this.field.value.length);
  }

  write = ({ target }) => {
    const { id, text } = this.props.message;
    if (target.value === text) edits.delete(id);
    else edits.set(id, target.value);
  };

  onKey = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.props.onClose();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.save();
  };

  save = async () => {
    const text = this.field.value.trim();
    if (!text || this.state.isSaving) return;
    this.setState({ isSaving: true });
    if (await edit(this.props.message, text)) this.cancel();
    else this.setState({ isSaving: false });
  };

  cancel = () => {
    edits.delete(this.props.message.id);
    this.props.onClose();
  };

  render({ message, name }, { isSaving }) {
    const isOwn = message.role === "user";
    const text = edits.get(message.id) ?? message.text;
    return html`
      <div class="editor">
        <textarea
          aria-label=${`Edit: ${name}`} rows=${Math.min(MOST_ROWS, 2 + text.split("\n").length)} onKeyDown=${this.onKey} onInput=${this.write}
          ref=${(field) => (this.field = field)} defaultValue=${text}
        ></textarea>
        <div class="choices">
          <button class="main" aria-disabled=${isSaving} onClick=${this.save}>${isOwn ? "Send as a new branch" : "Keep as a new version"}</button>
          <button onClick=${this.cancel}>Cancel</button>
          <span class="soft small">What is there now stays as another version.</span>
        </div>
      </div>
    `;
  }
}
