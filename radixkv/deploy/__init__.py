"""Files to run radixkv for good, as an ordinary user: units for systemd, and a Containerfile. No code."""
