"""Attacks on a running stack, and what a neighbour of the attacker's feels of them; `bench.isolation --neighbour` tells."""
