"""Random bugs, and whether the tests find them: `mutations` of a text, `planting` of one, `covering` of lines by tests."""
