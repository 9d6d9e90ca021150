"""`python -m bench.cluster`; see `run`."""

from __future__ import annotations

import sys

from bench.cluster.run import main

if __name__ == "__main__":
    sys.exit(main())
