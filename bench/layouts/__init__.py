"""Three strategies of KV memory side by side: `virtual` is the third one's pages, `attention` times kernels over each, `memory`
counts bytes and times growth and forks; `run` is the command.
"""
