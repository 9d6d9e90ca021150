"""`python -m bench.mutants`; see `run`."""

from __future__ import annotations

import sys

from bench.mutants.run import main

if __name__ == "__main__":
    sys.exit(main())
