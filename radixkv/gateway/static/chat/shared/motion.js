// What changes on the page is cross-faded where the browser can, and stays where it was.

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

/** Do it once what has changed is on the page. */
export function afterRender(action) {
  requestAnimationFrame(() => setTimeout(action));
}

/**
 * Do `change`, which replaces what the element `from` is the first of by what `to` is the first of (ids, or null): its top stays
 * where it is. With nothing to replace, or where motion is unwanted, it is done at once; else with the next frame.
 */
export function crossFade(from, to, change) {
  const update = async () => {
    const top = topOf(from);
    change();
    await null; // what has changed is drawn before that
    if (top !== null) holdAt(document.getElementById(to), top);
  };
  if (!document.getElementById(from) || !document.startViewTransition || isCalm.matches) update();
  else document.startViewTransition(update).ready.catch(() => {}); // another change came before it was shown
}

const topOf = (id) => document.getElementById(id)?.getBoundingClientRect().top ?? null;

/** Scroll an element of the thread to a place on the screen; where too little follows it, once it is measured, room is left below. */
function holdAt(element, top) {
  const thread = element?.closest(".thread");
  if (!thread) return;
  const content = thread.firstElementChild;
  content.style.minHeight = "";
  const scrolled = thread.scrollTop + element.getBoundingClientRect().top - top;
  const besides = thread.scrollHeight - content.offsetHeight;
  content.style.minHeight = `${scrolled + thread.clientHeight - besides}px`;
  thread.scrollTop = scrolled;
}

/** The room that was left below the end is not needed any more. */
export function takeRoomBack(content) {
  content.style.minHeight = "";
}
