// What changes on the page fades in, and stays where it was.

const isCalm = matchMedia("(prefers-reduced-motion: reduce)");
const FADE_MS = 120;
const FADING = { opacity: [0.3, 1] };

/** Do it once what has changed is on the page. */
export function afterRender(action) {
  requestAnimationFrame(() => setTimeout(action));
}

/**
 * Do `change`, which replaces what the element `from` is the first of by what `to` is the first of (ids, or null): its top stays
 * where it is, and it fades in, unless motion is unwanted. Over once it is on the page.
 */
export async function fadeIn(from, to, change) {
  const top = topOf(from);
  change();
  await null; // what has changed is drawn before that
  const first = top === null ? null : document.getElementById(to);
  if (first) holdAt(first, top);
  if (isCalm.matches) return;
  for (let each = /** @type {Element} */ (first); each && topOf(each.id) < innerHeight; each = each.nextElementSibling) each.animate(FADING, FADE_MS);
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
