"""CUDA kernels in Triton, which walk a work list over the tree.

- `tree_attention`, its inner step `tile`, and `merge_parts`: attention
- `work_list`, `device_work`: the work of a step, on the host and in fixed buffers on the device
- `launch`: the table of launch configurations; `upload`: small arrays to the device without waiting
- `triton_port`: Triton, or a stand-in where it is not installed
"""
