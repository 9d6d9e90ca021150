"""Generated from protos/radixkv/v1 by protos/generate.py; do not edit."""
