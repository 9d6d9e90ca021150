"""Drawings of commands in a terminal: trees, tables, plots."""
