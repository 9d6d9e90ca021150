"""The commands of `radixkv`, a module each: `add` declares its flags and the function that runs it."""
