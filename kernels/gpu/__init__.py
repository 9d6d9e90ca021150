"""CUDA kernels in Triton, which walk a work list over the tree.

- `tree_attention`, its inner loop `tile`, and `merge_parts`: attention
- `device_work`: the work list of a step in fixed buffers on the device
- `draw`: the next token of each row of logits
- `glue`: norms, embedded positions and gated MLPs, between a decoder's products
- `launch`: the table of launch configurations
"""
