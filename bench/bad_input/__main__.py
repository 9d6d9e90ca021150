"""Hostile input over every way into a running stack; see `run`."""

from __future__ import annotations

import sys

from bench.bad_input.run import main

if __name__ == "__main__":
    sys.exit(main())
