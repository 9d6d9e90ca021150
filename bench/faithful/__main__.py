"""`python -m bench.faithful`; see `run`."""

from __future__ import annotations

import sys

from bench.faithful.run import main

if __name__ == "__main__":
    sys.exit(main())
