"""`python -m bench.hit_rate`; see `run`."""

from __future__ import annotations

import sys

from bench.hit_rate.run import main

if __name__ == "__main__":
    sys.exit(main())
