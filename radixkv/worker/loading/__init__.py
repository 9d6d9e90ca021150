"""From a model's name to weights.

default_model   names, folders, hub ids, GGUF files
model_loading   transformers models
model_store     folders of models in the cache folder
model_clearing  removal of models no start can use
known_model     facts of a model kept for later starts
gguf_file       what a GGUF file says of its model
gguf_model      a GGUF file as a model folder
gguf_convert    configuration and tokenizer of a GGUF file
gguf_weights    weights read from a GGUF file, memory mapped
"""
