"""Which branches hold blocks and which positions run next.

scheduler        the whole: admission, batches, ends
queue            branches that wait
admission        the branch to acquire next
fair_queue       turns between owners
quota_wait       namespaces at their quota
running          branches that hold sequences
batch            positions of the next forward
length_estimate  expected output length
preemption       preempts running branches: decides, picks the victim, acts
swap             preempted KV in host memory
arena, spans     histories in contiguous spans
limits           bounds of scheduling
"""
