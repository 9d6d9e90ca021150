"""Share of held KV memory with live tokens: `run` replays lengths over three `memories`."""
