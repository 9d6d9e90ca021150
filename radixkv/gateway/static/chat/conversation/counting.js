// How many tokens a branch has, as far as the page can tell by itself; and what a reply cost.

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

/** What a reply cost, in words. */
export function costs(details) {
  if (details?.prompt_tokens == null || details.cached_tokens == null) return []; // not known of a reply that broke off
  const { prompt_tokens: read, cached_tokens: reused, generated_tokens: written, first_token_ms: first, duration_ms: all, drafts } = details;
  const parts = [`${reused.toLocaleString()} tokens reused`, `${(read - reused).toLocaleString()} computed`];
  if (drafts > 1) parts[1] += ` for ${drafts} drafts`;
  if (first != null) parts.push(`first token ${time(first)}`);
  if (written > 1 && all > first) parts.push(`${Math.round(((written - 1) * 1000) / (all - first))} tokens/s`);
  return parts;
}

function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
