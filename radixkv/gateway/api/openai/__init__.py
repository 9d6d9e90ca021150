"""Completions and chat completions.

chat, chat_chunks                requests; streamed chunks
completions, completion_chunks   the same for completions
prompt_scores                    log probabilities of prompt tokens
legacy_functions                 `functions` and `function_call`
"""
