"""What every server and client of ours shares: addresses, transport security, callers, limits.

addresses  ``host:port`` and ``unix:path``
tls        certificates; which addresses need them
channel    a client's channel: credentials, TLS
keepalive  pings that find a lost peer
retry      retries of clients
tenants    tenants, their keys and certificates
keys_file  the keys file, read again when it changes
rights     which role may call which method in which namespaces
limits     requests and tokens per minute, requests at once
shares     places that callers share
metrics    Prometheus: pools, and the listener
signals    orderly end on SIGINT or SIGTERM
streaming  server streams to slow readers
calls/     what stands in front of every gRPC call
"""

from __future__ import annotations

import os

# gRPC prints a line for every connection that a peer closes; what matters reaches the caller as an exception. gRPC reads the
# variable once, at its first use; set it to see that log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
