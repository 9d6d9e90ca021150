"""Trying grammars in a separate process: its cost, and its protection from `hostile_grammars`."""
