// What one does to whole conversations, one or several. What can be undone is not asked about first.

import { askForText, isConfirmed } from "../../dialog.js";
import { attempt } from "../conversation/actions.js";
import * as api from "../conversation/api.js";
import { excerpt } from "../conversation/conversation.js";
import { close } from "../conversation/following.js";
import { go } from "../conversation/routing.js";
import * as view from "../conversation/view.js";
import { fileName, saveText } from "../shared/download.js";
import { showToast } from "../shared/toasts.js";
import { forget, loadTags, put } from "./list.js";

const MOST_AT_ONCE = 200; // that the server changes in one call

const titleOf = (all) => (all.length === 1 ? `“${excerpt(all[0].title, 40)}”` : `${all.length} conversations`);
const idsOf = (all) => all.map((one) => one.id);

/** Change all of them; those that were changed. What was refused is thrown, once the others are changed. */
async function changeAll(all, action, tag = undefined) {
  const done = new Set();
  const reasons = [];
  for (let begin = 0; begin < all.length; begin += MOST_AT_ONCE) {
    const answer = await api.bulk(idsOf(all.slice(begin, begin + MOST_AT_ONCE)), action, tag);
    for (const id of [...answer.ids, ...(action === "delete" ? answer.missing : [])]) done.add(id);
    reasons.push(...answer.refused.map(({ reason }) => reason));
    forget(answer.missing);
  }
  return { changed: all.filter((one) => done.has(one.id)), refusal: reasons.length ? `${reasons.length} not changed: ${reasons[0]}` : null };
}

function tell({ refusal }) {
  if (refusal) throw new Error(refusal);
}

export const rename = ({ id, title: before }) =>
  attempt(async () => {
    const title = await askForText({ title: "Title of this conversation", text: before, action: "Rename" });
    if (title) put([await api.change(id, { title })]);
  });

export const pin = ({ id, pinned }) => attempt(async () => put([await api.change(id, { pinned: !pinned })]));

/** Put them into the archive, or take them out of it. */
export const archive = (all, isArchived) =>
  attempt(async () => {
    const outcome = await changeAll(all, isArchived ? "archive" : "unarchive");
    put(outcome.changed.map((one) => ({ ...one, archived: isArchived })));
    const undo = () =>
      attempt(async () => {
        const { changed } = await changeAll(outcome.changed, isArchived ? "unarchive" : "archive");
        put(changed.map((one) => ({ ...one, archived: !isArchived })));
      });
    if (outcome.changed.length) showToast(`${titleOf(outcome.changed)} ${isArchived ? "archived" : "taken out of the archive"}.`, undo);
    tell(outcome);
  });

/** Throw them away, for 30 days. */
export const throwAway = (all) =>
  attempt(async () => {
    const shown = view.followed.peek();
    const outcome = await changeAll(all, "trash");
    forget(idsOf(outcome.changed));
    const isShown = outcome.changed.some((one) => one.id === shown);
    if (isShown && (view.followed.peek() === shown || !view.followed.peek())) close();
    const undo = () =>
      attempt(async () => {
        const { changed } = await changeAll(outcome.changed, "restore");
        put(changed.map((one) => ({ ...one, trashed: null })));
        if (isShown && !view.followed.peek()) go(`#${shown}`);
        loadTags();
      });
    if (outcome.changed.length) showToast(`${titleOf(outcome.changed)} deleted.`, undo);
    loadTags();
    tell(outcome);
  });

/** Bring them back from the trash. */
export const bringBack = (all) =>
  attempt(async () => {
    const outcome = await changeAll(all, "restore");
    forget(idsOf(outcome.changed));
    if (outcome.changed.length) showToast(`${titleOf(outcome.changed)} restored.`, () => throwAway(outcome.changed));
    loadTags();
    tell(outcome);
  });

/** Whether they are gone: it cannot be undone, and is asked about first. */
export async function deleteForGood(all) {
  const text = `${titleOf(all)} with all branches will be gone for good.`;
  if (!(await isConfirmed({ title: "Delete for good?", text, action: "Delete for good" }))) return false;
  return attempt(async () => {
    const outcome = await changeAll(all, "delete");
    forget(idsOf(outcome.changed));
    tell(outcome);
  });
}

/** Give them tags and take others away. */
export const changeTags = (all, added, taken) =>
  attempt(async () => {
    let left = all;
    for (const [action, names] of /** @type {[string, string[]][]} */ ([["untag", taken], ["tag", added]])) {
      for (const name of names) {
        const outcome = await changeAll(left, action, name);
        left = outcome.changed.map((one) => ({ ...one, tags: [...one.tags.filter((own) => own !== name), ...(action === "tag" ? [name] : [])] }));
        put(left);
        tell(outcome);
      }
    }
    loadTags();
  });

/** Save them as one file, which can be imported again. */
export const exportAll = (all) =>
  attempt(async () => {
    const documents = [];
    for (const { id } of all) documents.push(await api.exported(id, "json"));
    saveText(documents.length === 1 ? documents[0] : `[${documents.join(",\n")}]`, fileName(all.length === 1 ? all[0].title : "conversations", "json"));
  });
