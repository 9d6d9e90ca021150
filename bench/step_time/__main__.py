"""`python -m bench.step_time`; see `run`."""

from __future__ import annotations

import sys

from bench.step_time.run import main

if __name__ == "__main__":
    sys.exit(main())
