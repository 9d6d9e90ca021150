"""`python -m bench.routing`; see `run`."""

from __future__ import annotations

import sys

from bench.routing.run import main

if __name__ == "__main__":
    sys.exit(main())
