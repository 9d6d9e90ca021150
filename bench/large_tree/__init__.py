"""A service with ten million cached tokens: `run` measures, `service` is one and its holder."""
