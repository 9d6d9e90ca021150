"""Whether tenants notice each other: `run` compares times to the first token, over two `ways` in."""
