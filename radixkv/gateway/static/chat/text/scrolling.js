// What is wider than its place scrolls sideways, by keys too: it takes the focus, and only while it is too wide.

const NAMES = { DIV: "Wide part", PRE: "Code" };

const seen = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) {
      target.setAttribute("tabindex", "0");
      target.setAttribute("role", "group");
      target.setAttribute("aria-label", `${NAMES[target.tagName] ?? "Formula"}, scrolls sideways`);
    } else {
      for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
    }
  }
});

/** Watch what scrolls below an element; an observer keeps no element alive. */
export function watchScrolling(element) {
  for (const each of element.querySelectorAll(".scrolls")) seen.observe(each);
}
