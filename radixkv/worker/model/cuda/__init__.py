"""A model's own code on a GPU, faster.

fused_decoder       Llama family, one kernel for each thing between its matrices
cuda_graphs         steps of few tokens in fixed buffers, captured
capturable_experts  experts of small steps by products that graphs take
"""
