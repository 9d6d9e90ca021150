"""`python -m bench.speculation`; see `run`."""

from __future__ import annotations

import sys

from bench.speculation.run import main

if __name__ == "__main__":
    sys.exit(main())
