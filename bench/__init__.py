"""Benchmarks of radixkv. Each module is a command: ``python -m bench.tree --help``."""
