"""What runs in a simulation: the service, workers with their holders and branches, clients, readers and routers."""
