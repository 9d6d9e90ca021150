"""A model over paged KV.

model            a transformers model run by its own code
native_model     Llama family on the native decoder
rows             rows of a step
runner           the protocol of a model and its pool
attention        the attention function that models call
mla              latent attention
batch_invariant  rows that do not depend on their batch
cuda             the model's own code on a GPU, faster
kv_pool          tensors of a block pool
kv_dtype         formats of K and V
adapters         low-rank adapters and their files
shares           shares of the weights for several ranks
model_loading    a folder or hub id to a model
known_model      facts of a model kept for later starts
model_facts      facts from a loaded model's configuration
"""
