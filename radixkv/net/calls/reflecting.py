"""Services listed and described by reflection: our own, and those whose `SubscribeKvEvents` routers call."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from radixkv.net.rights import SERVICE_NAMES as KV_EVENT_SERVICES
from radixkv.v1 import kv_events_pb2

__all__ = ["enable_reflection"]


def enable_reflection(server: grpc.aio.Server, service_names: tuple[str, ...]) -> None:
    """Add reflection to `server`.

    The routers' services are described in a separate pool, by our messages, which have the same field numbers. In the process's
    pool they would conflict with the routers' own stubs.

    Args:
        server: not started yet.
        service_names: services whose descriptors this process has.
    """
    own = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    pool = DescriptorPool()
    for name in own:
        _copy(pool, Default().FindFileContainingSymbol(name))
    _copy(pool, kv_events_pb2.DESCRIPTOR)
    for name in KV_EVENT_SERVICES:
        pool.AddSerializedFile(_event_service(name).SerializeToString())
    reflection.enable_server_reflection((*own, *KV_EVENT_SERVICES), server, pool)


def _copy(pool: DescriptorPool, file: Any) -> None:
    for dependency in file.dependencies:
        _copy(pool, dependency)
    pool.AddSerializedFile(file.serialized_pb)


def _event_service(full_name: str) -> descriptor_pb2.FileDescriptorProto:
    package, _, name = full_name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{full_name}.proto", package=package, syntax="proto3", dependency=[kv_events_pb2.DESCRIPTOR.name]
    )
    file.service.add(name=name).method.add(
        name="SubscribeKvEvents",
        input_type=f".{kv_events_pb2.SubscribeKvEventsRequest.DESCRIPTOR.full_name}",
        output_type=f".{kv_events_pb2.KvEventBatch.DESCRIPTOR.full_name}",
        server_streaming=True,
    )
    return file
