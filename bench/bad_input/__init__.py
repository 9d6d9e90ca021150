"""Hostile input over every way in: `python -m bench.bad_input`."""
