// Questions that the page asks in a dialog of its own.

import { html, render } from "./vendor/htm-preact.js";

/**
 * Show a dialog until it is closed: what it was closed with, or null. `content(close)`: what it holds; `name`: the id of its title.
 *
 * @param {string} name
 * @param {(close: (answer?: any) => void) => any} content
 * @returns {Promise<any>}
 */
export function ask(name, content) {
  return new Promise((done) => {
    const dialog = document.createElement("dialog");
    dialog.setAttribute("aria-labelledby", name);
    document.body.append(dialog);
    const close = (answer = null) => {
      dialog.close(); // the focus goes back to where it was
      render(null, dialog);
      dialog.remove();
      done(answer);
    };
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      close();
    });
    render(content(close), dialog);
    dialog.showModal();
  });
}

/** Whether a person says yes to what cannot be undone. `action`: the word on the button that says so. */
export async function isConfirmed({ title, text, action }) {
  const content = (close) => html`
    <h2 id="ask-title">${title}</h2>
    <p>${text}</p>
    <div class="choices">
      <button class="danger" onClick=${() => close(true)}>${action}</button>
      <button autofocus onClick=${() => close()}>Cancel</button>
    </div>
  `;
  return Boolean(await ask("ask-title", content));
}

/**
 * A line of text that a person gives, or null. `text`: what stands there first; `action`: the word on the button; `isOptional`:
 * an empty line is an answer too.
 */
export async function askForText({ title, text, action, isOptional = false }) {
  const content = (close) => {
    const submit = (event) => {
      event.preventDefault();
      const written = String(new FormData(event.target).get("text")).trim();
      close(written || isOptional ? written : null);
    };
    return html`<form onSubmit=${submit}>
      <h2 id="ask-title">${title}</h2>
      <p><input type="text" name="text" aria-labelledby="ask-title" value=${text} required=${!isOptional} autofocus /></p>
      <div class="choices"><button class="main">${action}</button> <button type="button" onClick=${() => close()}>Cancel</button></div>
    </form>`;
  };
  return ask("ask-title", content);
}
