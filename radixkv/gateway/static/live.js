// The state of a page is signals; what is shown is a function of them.

import { render } from "./vendor/htm-preact.js";
import { effect } from "./vendor/signals-core.js";

/** Show `view()` within `root`, and again, once a frame at most, when a signal that it read has changed. */
export function live(view, root) {
  let end = () => {};
  const draw = () => {
    end();
    let hasDrawn = false;
    end = effect(() => {
      if (hasDrawn) return void requestAnimationFrame(draw);
      hasDrawn = true;
      render(view(), root);
    });
  };
  draw();
}
