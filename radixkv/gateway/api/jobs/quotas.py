"""Bounds of one tenant's files and batches."""

from __future__ import annotations

from typing import NamedTuple

from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.connection import Connection

__all__ = ["JobLimits", "check_usage"]

DAY_S = 24 * 3600.0


class JobLimits(NamedTuple):
    """Bounds of one tenant.

    max_file_bytes: of one file. max_bytes: of all files, waiting requests and results together. max_files: uploaded files.
    max_open: unfinished batches. max_batches: unfinished ones and finished ones whose results are stored.
    window_s: how long a batch may run before its waiting requests expire. ttl_s: lifetime of files and results.
    """

    max_file_bytes: int = 100 * 1024 * 1024
    max_bytes: int = 1024 * 1024 * 1024
    max_files: int = 1000
    max_open: int = 64
    max_batches: int = 1000
    window_s: float = DAY_S
    ttl_s: float = 30 * DAY_S


def check_usage(connection: Connection, namespace: str, limits: JobLimits) -> None:
    """Reject an addition of the current job that puts its namespace over a bound; the error rolls the job back.

    Raises:
        ApiError: 400.
    """
    used = connection.execute("SELECT * FROM job_usage WHERE namespace = ?", (namespace,)).fetchone()
    if used is None:
        return
    for number, bound, what in (
        (used["num_files"], limits.max_files, "files"),
        (used["num_batches"], limits.max_batches, "batches"),
        (used["size_bytes"], limits.max_bytes, "bytes of files and batches"),
    ):
        if number > bound:
            message = f"at most {bound:,} {what} are kept for one tenant; delete some first"
            raise ApiError(400, message, code="quota_exceeded")
