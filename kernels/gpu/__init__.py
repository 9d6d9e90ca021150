"""CUDA kernels in Triton: attention, which walks a work list over the tree, and what a decoder needs around it.

- `tree_attention`, its inner loop `tile`, and `merge_parts`: attention
- `device_work`: the work list of a step in fixed buffers on the device
- `draw`: the next token of each row of logits; `draw_bounds`: what top-k and top-p keep
- `glue`: norms, embedded positions and gated MLPs, between a decoder's products
- `launch`: the table of launch configurations
- `rounded_linear`, and for many rows `restored_linear`: linear layers of 8 and 4 bits; `grouped_weight`: their weights;
  `expert_rows`: the order of experts' rows; `linear_tiles`: the table of tiles
"""
