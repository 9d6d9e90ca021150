"""`python -m bench.chat_page`; see `run`."""

from __future__ import annotations

import sys

from bench.chat_page.run import main

if __name__ == "__main__":
    sys.exit(main())
