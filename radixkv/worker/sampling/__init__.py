"""From logits to tokens.

sampler           one draw per row
device_sampler    the same on a device
logit_processors  penalties, bias, bounds
bad_words         words a reply must not contain
grammar           a matcher of a reply's grammar
grammar_source    grammars in llguidance's terms
grammar_store     compiled grammars, per namespace
grammar_trial     a process that tries grammars
grammar_trials    the worker's client of that process
scoring           log probabilities of prompts
score_logits      log probabilities of given tokens
"""
