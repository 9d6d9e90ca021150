// How often a page that changes with every token is shown again.

import { afterRender } from "./motion.js";

const FRAME_MS = 17;
const REST = 2; // times as long as showing took, where that takes longer than a frame

/** A function that has `show` called after the next frame, once, however often it is called; later where `show` takes long. */
export function paced(show) {
  let isDue = false;
  let excess_ms = 0;
  return () => {
    if (isDue) return;
    isDue = true;
    const next = () =>
      afterRender(() => {
        isDue = false;
        const began_ms = performance.now();
        show();
        requestAnimationFrame(() => (excess_ms = Math.max(0, performance.now() - began_ms - FRAME_MS)));
      });
    if (excess_ms > FRAME_MS) setTimeout(next, REST * excess_ms);
    else next();
  };
}
