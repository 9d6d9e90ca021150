"""More work than fits the pool: `run` measures, `load` keeps it outstanding."""
