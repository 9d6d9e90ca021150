"""`python -m bench.layouts`; see `run`."""

from __future__ import annotations

import sys

from bench.layouts.run import main

if __name__ == "__main__":
    sys.exit(main())
