"""Commands that need no running server: `plan` the memory of a pool, `replay` a load in one of any size."""
