// When something was, as people say it.

const DAY_MS = 24 * 3600 * 1000;
let month; // made at its first use: it takes longer than the rest of this file
const TRASH_DAYS = 30; // after which what is in the trash is gone

const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();

/** The part of a list that a time belongs to, in seconds since 1970. */
export function groupOf(seconds, now) {
  const at = new Date(seconds * 1000);
  const days = Math.round((midnight(now) - midnight(at)) / DAY_MS); // a day may have 23 hours
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "Last 7 days" : (month ??= new Intl.DateTimeFormat("en", { month: "long", year: "numeric" })).format(at);
}

/** How long what was thrown away then is still there. */
export function timeLeft(trashed) {
  const days = Math.max(0, Math.ceil(TRASH_DAYS - (Date.now() / 1000 - trashed) / (DAY_MS / 1000)));
  return days === 1 ? "1 day left" : `${days} days left`;
}
