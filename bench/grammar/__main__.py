"""`python -m bench.grammar`; see `run`."""

from __future__ import annotations

import sys

from bench.grammar.run import main

if __name__ == "__main__":
    sys.exit(main())
