"""`python -m bench.fragmentation`; see `run`."""

from __future__ import annotations

import sys

from bench.fragmentation.run import main

if __name__ == "__main__":
    sys.exit(main())
