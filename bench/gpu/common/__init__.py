"""Shared by the GPU benches: inputs, and times of a device."""
