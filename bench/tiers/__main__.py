"""`python -m bench.tiers`; see `run`."""

from __future__ import annotations

import sys

from bench.tiers.run import main

if __name__ == "__main__":
    sys.exit(main())
