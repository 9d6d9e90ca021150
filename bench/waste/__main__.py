"""`python -m bench.waste`; see `run`."""

from __future__ import annotations

import sys

from bench.waste.run import main

if __name__ == "__main__":
    sys.exit(main())
