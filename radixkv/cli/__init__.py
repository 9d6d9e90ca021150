"""The command line: one module per command, each with `add(commands)`. Flags are parsed here and nowhere else."""

from radixkv.cli.program import main, run

__all__ = ["main", "run"]
