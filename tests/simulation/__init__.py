"""The service, workers and clients on a simulated clock and a simulated network, in one process, from one seed."""
