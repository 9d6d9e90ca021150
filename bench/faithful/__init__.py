"""Caching against transformers' `generate`: `run` walks conversation trees, `follow` compares one reply."""
