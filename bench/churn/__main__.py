"""`python -m bench.churn`; see `run`."""

from __future__ import annotations

import sys

from bench.churn.run import main

if __name__ == "__main__":
    sys.exit(main())
