"""CPU kernels: C++ of `native/`, compiled at first use, and plain torch.

- `native_build`: compiles and loads the library; `native_cache`, `native_attention`, `native_draw`, `native_decoder` call it
- `rounded_linear`, `int4_weight`: linear layers with weights of 8 and 4 bits
- `torch_plan`, `torch_attention`: attention in plain torch, and the plan of a batch for it
- `steady_attention`: attention in which a row is bitwise independent of the rest of the batch
- `huge_pages`: host memory in pages of two megabytes
"""
