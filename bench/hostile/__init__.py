"""Attacks on a running stack, and their effects on a neighbour of the attacker; see `bench.isolation --neighbour`."""
