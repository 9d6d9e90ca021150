"""Speculation: tokens that are likely to follow a reply are run with its next step, and kept where they are drawn.

- ngrams: where the n-grams of a text ended last
- sources: drafts from a reply's own text and from the namespace's recent replies
- estimates: learned acceptance of drafts, and the time of a step by its positions
- drafter: which tokens are drafted for which branches of a batch
- comparison: whether drafts change any bit, compared at the start
- settings: bounds
"""
