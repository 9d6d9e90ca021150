"""What a cache may and must answer, apart from its code: the oracle, its parts, and the books of what a cache shows."""
