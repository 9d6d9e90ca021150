// Numbers in words, on every page the same.

/** A count with its noun: `3 blocks`. */
export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** A time in its largest unit: `12 s`, `4 min`, `3 h`. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1) return "1 s";
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 5700) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}
