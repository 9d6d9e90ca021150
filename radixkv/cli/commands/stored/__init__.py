"""Commands of the block store: `erase` a namespace, `export` and `import` the KV of a history."""
