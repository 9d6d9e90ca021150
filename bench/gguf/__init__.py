"""GGUF files against llama.cpp: `run` measures, `side` is one system serving one file."""
