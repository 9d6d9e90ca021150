"""radixkv compared with llama.cpp and transformers' continuous batching: same model file, same requests, one run."""
