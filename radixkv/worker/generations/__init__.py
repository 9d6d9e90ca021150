"""One running request.

generation      a request, its branches, its events
branch          one continuation and its sequence
reply           one branch's reply as it grows
stop_rules      when a branch ends
stop_strings    the first stop string of a stream
pins            prefixes that a request pins
beam_search     a request whose replies a beam search finds
after_thinking  a grammar for the answer after the thoughts
encoding        text to token ids within bounds
text            chat templates, text to ids and back
control_tokens  tokens only a template may write
tool_prompt     tools for templates without them
stream_decoder  ids to text, never half a character
spelling        bytes of single tokens
veil            callers' text hidden from added tokens
"""
