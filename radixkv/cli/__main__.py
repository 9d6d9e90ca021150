"""`python -m radixkv.cli`, where the script `radixkv` is not on the path."""

import sys

from radixkv.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
