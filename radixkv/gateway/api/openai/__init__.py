"""Completions and chat completions.

chat, chat_chunks                requests; streamed chunks
completions, completion_chunks   the same for completions
plan, chunks                     what requests, and chunks, of both have in common
prompt_scores                    log probabilities of prompt tokens
legacy_functions                 `functions` and `function_call`
"""
