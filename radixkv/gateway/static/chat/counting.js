// How many tokens there are, as far as the page can tell by itself.

const CHARACTERS_A_TOKEN = 4; // where nothing is known of the branch

/** About how many tokens a branch and what one writes below it take: counted up to its last whole reply, estimated from there. */
export function tokensOf(path, written) {
  let known = path.length - 1;
  while (known >= 0 && path[known].details?.prompt_tokens == null) known--;
  const { prompt_tokens: read = 0, generated_tokens: told = 0 } = path[known]?.details ?? {};
  const length = (messages) => messages.reduce((sum, { text }) => sum + text.length, 0);
  const before = length(path.slice(0, known + 1));
  const a = before > 200 ? before / (read + told) : CHARACTERS_A_TOKEN;
  return Math.round(read + told + (length(path.slice(known + 1)) + written.length) / a);
}
