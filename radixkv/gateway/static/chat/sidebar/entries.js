// The list of conversations: one stop of the Tab key, within it the arrow keys. What is far from sight is not there.

import { Component, createRef, html, signal } from "../../vendor/htm-preact.js";
import { Icon } from "../../icons.js";
import { followed, panel } from "../conversation/view.js";
import { Menu } from "../shared/menu.js";
import { timeLeft } from "./dates.js";
import { itemsOf } from "./entry_menu.js";
import { Hits } from "./hits.js";
import { deleteForGood, throwAway } from "./keeping.js";
import { groups, hasMore, listed, loadMore, place } from "./list.js";
import { choose, chosen, chosenOnes, toggleChoosing } from "./selection.js";

const EARLY_PX = 600; // before they come into sight conversations are there, and the next page is asked for
const TOGETHER = 25; // that come and go at once
const FIRST = 50; // that are there before it is known what is in sight
const ENTRY_PX = 36; // of one that has not been there yet

const stop = signal(null); // id of the one that the Tab key leads to
const leave = () => (panel.value = null);

/** Have `look` told whether an element of the list is in sight or near. */
function watch(element, look) {
  const seen = new IntersectionObserver((told) => look(told.at(-1)), { root: element.closest(".conversations"), rootMargin: `${EARLY_PX}px` });
  seen.observe(element);
  return seen;
}

export class Entries extends Component {
  end = createRef();
  #place = -1; // of the one that has the focus
  #id = null; // its

  componentDidMount() {
    const seen = watch(this.end.current, ({ isIntersecting }) => isIntersecting && loadMore());
    this.watchEnd = () => {
      seen.unobserve(this.end.current); // so that one that stays in sight is told again
      seen.observe(this.end.current);
    };
    this.componentWillUnmount = () => seen.disconnect();
  }

  componentDidUpdate() {
    this.watchEnd();
    if (this.#place < 0) return;
    const now = listed.peek().findIndex((one) => one.id === this.#id); // what had the focus has moved, or has gone
    this.#place = now < 0 ? Math.min(this.#place, listed.peek().length - 1) : now;
    if (document.activeElement === document.body) this.focus(this.#place);
  }

  /** Focus the entry at a place of the list. */
  async focus(place) {
    const one = listed.peek()[place];
    if (one) stop.value = one.id;
    await null; // it is there then
    const entry = one ? this.element.querySelector(`[data-id="${one.id}"] [data-main]`) : document.getElementById("search");
    entry?.focus();
  }

  onFocus = ({ target }) => {
    this.#id = target.closest("[data-id]")?.dataset.id ?? null;
    this.#place = listed.peek().findIndex((one) => one.id === this.#id);
    if (this.#id) stop.value = this.#id;
  };

  /** The focus has left, unless what had it goes from the page just now. */
  onBlur = ({ target }) => {
    queueMicrotask(() => {
      if (target.isConnected && !this.element.contains(document.activeElement)) this.#place = -1;
    });
  };

  onKey = (event) => {
    const all = listed.peek();
    const one = all[this.#place];
    if (!one || event.ctrlKey || event.metaKey || event.altKey || !event.target.closest("[data-main], [type=checkbox]")) return;
    const step = { ArrowDown: this.#place + 1, ArrowUp: this.#place - 1, Home: 0, End: all.length - 1 }[event.key];
    const isTrash = place.peek() === "trash";
    if (step !== undefined) this.focus(Math.max(0, Math.min(step, all.length - 1)));
    else if (event.key.toLowerCase() === "x") choose(one.id, event.shiftKey);
    else if (event.key === "Escape" && chosen.peek()) toggleChoosing();
    else if (event.key === "Delete") (isTrash ? deleteForGood : throwAway)(chosenOnes().length ? chosenOnes() : [one]);
    else return;
    event.preventDefault();
  };

  render() {
    const all = listed.value;
    const current = followed.value;
    const tabbed = [stop.value, current].find((id) => all.some((one) => one.id === id)) ?? all[0]?.id;
    let numBefore = 0;
    return html`
      <div class=${`conversations ${chosen.value ? "choosing" : ""}`} ref=${(element) => (this.element = element)} onFocusIn=${this.onFocus} onFocusOut=${this.onBlur} onKeyDown=${this.onKey}>
        ${groups.value.map(
          ({ name, conversations }) => html`
            <section key=${name} aria-label=${name}>
              ${place.value !== "trash" && html`<h2 class="group soft" aria-hidden="true">${name}</h2>`}
              ${Array.from({ length: Math.ceil(conversations.length / TOGETHER) }, (_, at) => {
                const from = at * TOGETHER;
                return html`<${Some} key=${at} all=${conversations} from=${from} isFirst=${(numBefore += TOGETHER) <= FIRST} current=${current} tabbed=${tabbed} />`;
              })}
            </section>
          `,
        )}
        <div ref=${this.end} class="end">${hasMore.value && html`<button onClick=${() => loadMore()}>Older ones</button>`}</div>
      </div>
    `;
  }
}

/** Conversations that stand together in a part of the list: there while they are near, or one of them has the stop of the Tab key. */
class Some extends Component {
  state = { isNear: this.props.isFirst, height_px: null };

  componentDidMount() {
    const seen = watch(this.element, ({ isIntersecting, boundingClientRect: { height } }) => {
      const isMeasured = this.element.childElementCount > 0;
      this.setState({ isNear: isIntersecting, height_px: isMeasured ? height : this.state.height_px });
    });
    this.componentWillUnmount = () => seen.disconnect();
  }

  render({ all, from, current, tabbed }, { isNear, height_px }) {
    const some = all.slice(from, from + TOGETHER);
    const isThere = isNear || some.some((one) => one.id === tabbed);
    const height = isThere ? "" : `${height_px ?? some.length * ENTRY_PX}px`;
    return html`<ul style=${{ height }} ref=${(element) => (this.element = element)}>
      ${isThere &&
      some.map((one, at) => {
        const isChosen = chosen.value?.has(one.id) ?? false;
        return html`<${Entry} key=${one.id} one=${one} nth=${from + at + 1} count=${all.length} isCurrent=${one.id === current}
          isTabbed=${one.id === tabbed} isChosen=${isChosen} />`;
      })}
    </ul>`;
  }
}

/** The `nth` of `count` in its part of the list. Its box is in sight while one chooses. */
class Entry extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((name) => next[name] !== this.props[name]);
  }

  render({ one, nth, count, isCurrent, isTabbed, isChosen }) {
    const { id, title, hits, has_more_hits } = one;
    const tab = isTabbed ? 0 : -1;
    return html`
      <li data-id=${id} aria-posinset=${nth} aria-setsize=${count}>
        <div class=${`row ${isCurrent ? "current" : ""}`}>
          <input type="checkbox" aria-label=${`Choose “${title}”`} tabindex=${tab} checked=${isChosen} onClick=${(event) => choose(id, event.shiftKey)} />
          <${Title} one=${one} isCurrent=${isCurrent} tab=${tab} />
          <${Menu} id=${`of-${id}`} label=${`Actions for “${title}”`} tab=${tab} items=${() => itemsOf(one)} />
        </div>
        ${hits?.length > 0 && html`<${Hits} id=${id} hits=${hits} hasMore=${has_more_hits} onOpen=${leave} />`}
      </li>
    `;
  }
}

/** A conversation in the trash does not open. */
function Title({ one, isCurrent, tab }) {
  const { id, title, num_messages, pinned, archived, tags, trashed } = one;
  const about = html`
    <span class="name">${pinned && html`<${Icon} name="pin" />`}${archived && place.value === "all" && html`<${Icon} name="archive" />`}<span class="title">${title}</span>
      <span class="count soft numbers">${num_messages}<span class="hidden-text"> messages</span></span></span>
    ${trashed !== null && html`<span class="about soft">${timeLeft(trashed)}</span>`}
    ${tags.length > 0 && html`<span class="about soft">${tags.map((tag) => html`<span key=${tag} class="tag">${tag}</span>`)}</span>`}
  `;
  if (trashed !== null) return html`<div class="entry" data-main tabindex=${tab} role="group" aria-label=${title}>${about}</div>`;
  return html`<a class="entry" data-main tabindex=${tab} href=${`#${id}`} aria-current=${isCurrent ? "true" : undefined} onClick=${leave}>${about}</a>`;
}
