"""The radix trees of all namespaces over one block pool.

roots        the root of a namespace's tree; one pin
forest       walking, locking, adding and removing nodes, eviction
surgery      splitting, merging, growing, cutting edges while sequences stand on them
walk         all nodes in slices
block_pool   block ids and the free ones among them
allocation   capacity checks and allocation, which evicts
accounts     blocks held per namespace; partitions of the pool
quotas       setting quotas, reporting usage
pins         setting, renewing and ending pins, within their bounds
retain       retention priorities of ranges of a history
hints        blocks that the holder has below the pool
block_times  histograms of lifetime, idle time, reuse
change_log   changes recorded for events
hashes       64-bit names of blocks by content
block_records  what a holder keeps of each block, unread, and plays back to a restarted cache
journal      changes that a holder replays to a restarted cache
"""
