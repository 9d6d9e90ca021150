"""`python -m bench.tree`; see `run`."""

from __future__ import annotations

import sys

from bench.tree.run import main

if __name__ == "__main__":
    sys.exit(main())
