"""`PrefixCache`, the one façade of the core.

prefix_cache  the façade: sequences, events, Steps
manage        pins, quotas, retention, eviction by name
reads         match, stats, explain, listing
adopt         tree and sequences of a lost cache, reported again by its holder
adopt_blocks  the tree by records of its blocks, which the holder does not read
state         forest, sequences, pins and counters that these calls work on
steps         many ops in one message, each succeeding or failing alone
"""
