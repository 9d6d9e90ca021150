// What is copied.

/** Copy a text. The clipboard's own call is there only over HTTPS or on this machine; elsewhere it is a selection that is copied. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const before = /** @type {HTMLElement} */ (document.activeElement);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden-text";
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  before?.focus({ preventScroll: true });
  if (!isCopied) throw new Error("This browser does not let the page copy.");
}
