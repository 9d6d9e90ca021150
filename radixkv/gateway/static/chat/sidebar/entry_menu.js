// What can be done with one conversation, in the list and above its branch.

import { archive, bringBack, deleteForGood, exportAll, pin, rename, throwAway } from "./keeping.js";
import { tagAll } from "./tagging.js";

/** What changes nothing of what it says. */
export const marksOf = (one) => [
  { name: "Rename", icon: "pencil", act: () => rename(one) },
  { name: one.pinned ? "Unpin" : "Pin", icon: one.pinned ? "pin-off" : "pin", act: () => pin(one) },
  { name: "Tags", icon: "tag", act: () => tagAll([one]) },
  { name: one.archived ? "Unarchive" : "Archive", icon: one.archived ? "archive-restore" : "archive", act: () => archive([one], !one.archived) },
];

export const deletionOf = (one) => ({ name: "Delete", icon: "trash", act: () => throwAway([one]), isDanger: true });

/** All that a list offers. */
export const itemsOf = (one) =>
  one.trashed === null
    ? [...marksOf(one), { name: "Save as JSON", icon: "download", act: () => exportAll([one]) }, deletionOf(one)]
    : [
        { name: "Restore", icon: "undo-2", act: () => bringBack([one]) },
        { name: "Delete for good", icon: "trash", act: () => deleteForGood([one]), isDanger: true },
      ];
