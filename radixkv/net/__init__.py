"""Addresses, transport security, callers and limits, for every server and client.

addresses  ``host:port`` and ``unix:path``
tls        certificates; which addresses need them
channel    a client's channel: credentials, TLS
keepalive  pings that find a lost peer
retry      retries of clients
tenants    tenants, their keys and certificates
keys_file  the keys file, read again when it changes
rights     which role may call which method in which namespaces
limits     requests and tokens per minute, concurrent requests
shares     places that callers share
metrics    Prometheus: pools, and the listener
signals    end on SIGINT or SIGTERM
streaming  server streams to slow readers
loop_thread  an event loop on a thread of its own, for servers
calls/     interceptors of every gRPC call
"""

from __future__ import annotations

import os

# gRPC prints a line for every connection that a peer closes; errors reach the caller as exceptions anyway. gRPC reads the
# variable once, at its first use; set it to see that log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
