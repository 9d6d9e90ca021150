"""A model over paged KV.

model            a transformers model run by its own code
native_model     Llama family on the native decoder
rows             rows of a step
runner           the protocol of a model and its pool
attention        the attention function that models call
mla              latent attention
batch_invariant  rows that do not depend on their batch
capturable_experts  experts of small steps by products that CUDA graphs take
cuda_graphs      decode steps in fixed buffers, captured on CUDA
fused_decoder    Llama family on a GPU, one kernel for each thing between its matrices
kv_pool          tensors of a block pool
kv_dtype         formats of K and V
lora, lora_file  adapters and their files
model_loading    a folder or hub id to a model
known_model      facts of a model kept for later starts
model_facts      facts from a loaded model's configuration
"""
