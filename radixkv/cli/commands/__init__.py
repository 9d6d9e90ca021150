"""The commands of `radixkv`, a module each: `add` declares its flags and what carries it out."""
