"""Conversations of coding agents, recorded once and replayed."""
