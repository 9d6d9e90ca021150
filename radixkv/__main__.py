"""`python -m radixkv`, where the script `radixkv` is not on the path."""

from radixkv.cli.program import run

if __name__ == "__main__":
    run()
