"""`python -m bench.gguf`; see `run`."""

from __future__ import annotations

import sys

from bench.gguf.run import main

if __name__ == "__main__":
    sys.exit(main())
