// What is wider than its place scrolls sideways, by keys too: it takes the focus, and only while it is too wide.

const NAMES = { DIV: "Wide part", PRE: "Code" };

const seen = new ResizeObserver((entries) => {
  for (const place of new Set(entries.map(({ target }) => target.closest(".scrolls")))) {
    if (place && place.scrollWidth > place.clientWidth) {
      place.setAttribute("tabindex", "0");
      place.setAttribute("role", "group");
      place.setAttribute("aria-label", `${NAMES[place.tagName] ?? "Formula"}, scrolls sideways`);
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) place?.removeAttribute(name);
    }
  }
});

/** Watch what scrolls below an element, and what is in it, which may grow where its place does not. An observer keeps none alive. */
export function watchScrolling(element) {
  for (const each of element.querySelectorAll(".scrolls, .scrolls > *")) seen.observe(each);
}
