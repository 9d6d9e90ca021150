"""Hostile input over every way into a running stack; `run` tells."""

from __future__ import annotations

import sys

from bench.bad_input.run import main

if __name__ == "__main__":
    sys.exit(main())
