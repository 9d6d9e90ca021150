// What went wrong, in words for people.

const LENGTH = /(\d+) tokens'?; it must be at most (\d+) tokens/;

/** A refusal as a notice: `{text, status, code}`; `overflow`: of a prompt that is too long, how long it is and may be. */
export function inWords({ message, status, code }) {
  const [, tokens, most] = (code === "context_length_exceeded" && LENGTH.exec(message)) || [];
  if (!tokens) return { text: message, status, code };
  const overflow = { tokens: Number(tokens), most: Number(most) };
  const counted = `${overflow.tokens.toLocaleString()} tokens, of at most ${overflow.most.toLocaleString()} tokens`;
  return { text: `This branch is longer than the model can read: ${counted}.`, status, code, overflow };
}
