"""CPU kernels: wrappers of the compiled C++, and plain torch.

- `native_attention`, `native_draw`, `native_decoder`: call the library compiled from `kernels/native/`
- `rounded_linear`, `int4_weight`: linear layers with weights of 8 and 4 bits
- `torch_plan`, `torch_attention`: attention in plain torch, and the plan of a batch for it
- `steady_attention`: attention in which a row is bitwise independent of the rest of the batch
"""
