"""From a model's name to weights.

default_model   names, folders, hub ids, GGUF files
packed_linear   weights packed for CPU kernels
model_store     folders of models in the cache folder
model_clearing  removal of models no start can use
gguf_file       a GGUF file's facts about its model
gguf_model      a GGUF file as a model folder
gguf_convert    configuration and tokenizer of a GGUF file
gguf_weights    weights read from a GGUF file, memory mapped
"""
