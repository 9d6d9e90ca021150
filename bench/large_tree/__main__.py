"""`python -m bench.large_tree`; see `run`."""

from __future__ import annotations

import sys

from bench.large_tree.run import main

if __name__ == "__main__":
    sys.exit(main())
