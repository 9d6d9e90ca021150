"""`python -m bench.scoring`; see `run`."""

from __future__ import annotations

import sys

from bench.scoring.run import main

if __name__ == "__main__":
    sys.exit(main())
