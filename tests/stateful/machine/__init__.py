"""The state machine: its rules, what they draw from, and the driver that compares cache, worker and oracle."""
