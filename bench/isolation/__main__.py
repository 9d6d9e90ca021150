"""`python -m bench.isolation`; see `run`."""

from __future__ import annotations

import sys

from bench.isolation.run import main

if __name__ == "__main__":
    sys.exit(main())
