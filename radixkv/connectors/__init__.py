"""Connectors of other engines: their KV in a host pool whose index is a prefix cache, in process or a service's.

`vllm`: the class that vLLM loads. `saving`: its scheduler half, which plans loads and saves. `index`: the holder of the host
pool, and its replacement after a loss. `rows`: its worker half, which copies blocks. `hashes`: block hashes as token ids.

Nothing is imported here: vLLM and torch are needed by the modules that run in vLLM's processes.
"""
