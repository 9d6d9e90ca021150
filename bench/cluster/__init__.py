"""Cost of choosing a worker in a cluster."""
