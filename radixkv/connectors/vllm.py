"""A KV connector (version 1) for vLLM: a host pool below its paged KV cache, indexed by a prefix cache.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "RadixKVConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "radixkv.connectors.vllm", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"num_blocks": 8192, "address": "127.0.0.1:50051"}}'

The scheduler's connector holds the index: a `PrefixCache` in its process, or with `address` a pool of a cache service, where
routers and operators see it. Each worker's connector holds the rows: `num_blocks` blocks of its layers in host memory.

Not run yet: a real vLLM engine on a GPU. The tests drive both halves through vLLM 0.33's own interface, with tensors on a CPU.
README.md in this folder has the options and the limits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radixkv.connectors.index import HostIndex
from radixkv.connectors.rows import HostRows
from radixkv.connectors.saving import HostSaver, Scheduled, StepPlan
from radixkv.core.api import CacheHolder, PoolShape
from radixkv.core.cache.prefix_cache import PrefixCache

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorWorkerMetadata,
    )
except ImportError as error:
    raise ImportError(
        f"radixkv.connectors.vllm needs a vLLM with KV connectors of version 1, such as 0.33: {error}"
    ) from error

__all__ = ["RadixKVConnector"]

logger = logging.getLogger(__name__)

OPTIONS = {
    "num_blocks",
    "address",
    "pool_name",
    "namespace",
    "timeout_s",
    "token",
    "token_file",
    "ca_file",
    "certificate_file",
    "key_file",
}
FULL_ATTENTION = {"FullAttentionSpec", "MLAAttentionSpec"}


class StepMetadata(KVConnectorMetadata):  # type: ignore[misc] # vLLM is not there when types are checked
    """The plan of a step, for every worker."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class SaveReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """How many workers carried out the saves of each step, and the steps in which one failed to."""

    def __init__(self, num_saved: dict[int, int], failed_steps: set[int]) -> None:
        self.num_saved, self.failed_steps = num_saved, failed_steps

    def aggregate(self, other: SaveReport) -> SaveReport:
        """The report of both."""
        num_saved = dict(self.num_saved)
        for number, num_workers in other.num_saved.items():
            num_saved[number] = num_saved.get(number, 0) + num_workers
        return SaveReport(num_saved, self.failed_steps | other.failed_steps)


class RadixKVConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The connector of a scheduler or of a worker, by `role`.

    Raises:
        ValueError: an option out of its bound, or a model whose KV it cannot hold: several KV cache groups, a group that is
            not full attention, context parallelism.
        RadixKVError: the service rejects or cannot be reached at the start.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        options = dict(transfer.kv_connector_extra_config)
        num_rows, block_size = _check(options, vllm_config, kv_cache_config)
        self._num_rows = num_rows
        self._num_blocks = kv_cache_config.num_blocks
        self._rows: HostRows | None = None
        self._loaded: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._saved: dict[int, int] = {}
        self._failed_steps: set[int] = set()
        if role is not KVConnectorRole.SCHEDULER:
            return
        if getattr(transfer, "kv_load_failure_policy", "recompute") != "recompute":
            logger.warning("kv_load_failure_policy is not 'recompute': a request whose KV cannot be loaded fails")
        parallel = vllm_config.parallel_config
        pool_name = str(options.get("pool_name", "vllm"))
        if getattr(parallel, "data_parallel_size", 1) > 1:
            pool_name += f"-{parallel.data_parallel_rank}"
        shape = PoolShape(num_rows, block_size, pool_name)
        self._saver = HostSaver(
            HostIndex(lambda: _holder(options, shape), timeout_s=float(options.get("timeout_s", 2.0))),
            num_rows,
            block_size,
            num_workers=parallel.world_size,
            namespace=str(options.get("namespace", "default")),
        )

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not saved costs a later hit only."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:  # noqa: ARG003
        """Sleep would free the caches that the workers hold views of."""
        return False

    # -- the scheduler's half -----------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens in the host pool after those that vLLM holds. The request waits for a step while they are loaded.

        vLLM would use a reply computed in the step of a failed load where it schedules a step ahead, and would share blocks
        before they are loaded; a request that waits does neither.
        """
        num_found = self._saver.find(request, num_computed_tokens)
        return num_found, num_found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Lock what is loaded, and plan the loads."""
        self._saver.admit(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """The copies of this step."""
        return StepMetadata(self._saver.plan(_scheduled(scheduler_output)))

    def update_connector_output(self, connector_output: Any) -> None:
        """Publish what all workers have saved; evict what one could not load."""
        report = connector_output.kv_connector_worker_meta or SaveReport({}, set())
        loaded, failed_blocks = connector_output.finished_recving or (), connector_output.invalid_block_ids
        self._saver.report(report.num_saved, report.failed_steps, loaded, failed_blocks)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:  # noqa: ARG002
        """vLLM may free the blocks at once: saves of earlier steps read them before a later step writes them."""
        self._saver.finish(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Forget all that was saved; False if the service could not be reached for it."""
        return self._saver.reset()

    # -- a worker's half ----------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Allocate host memory for the layers of this worker."""
        self._rows = HostRows(kv_caches, self._num_blocks, self._num_rows)
        logger.info("host pool: %d blocks, %.2f GiB", self._num_rows, self._rows.size_bytes / 2**30)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Load the step's blocks, in the order of the current stream."""
        plan = self._step_plan()
        if plan is not None and plan.loads:
            self._failed_blocks |= self._registered().load(plan.loads)
            self._loaded.update(plan.loading)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: attention runs on the stream that loads."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved layer by layer; see `wait_for_save`."""

    def wait_for_save(self) -> None:
        """Save the step's blocks, after its forward and before the next in the order of the current stream."""
        plan = self._step_plan()
        if plan is None or not plan.saves:
            return
        if self._registered().save(plan.saves):
            self._saved[plan.number] = 1
        else:
            self._failed_steps.add(plan.number)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:  # noqa: ARG002
        """Requests whose blocks are loaded, or reported as not loaded, since the last call."""
        loaded, self._loaded = self._loaded, set()
        return None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were not loaded since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> SaveReport | None:
        """The steps whose saves are done since the last call."""
        if not self._saved and not self._failed_steps:
            return None
        report = SaveReport(self._saved, self._failed_steps)
        self._saved, self._failed_steps = {}, set()
        return report

    def shutdown(self) -> None:
        """Detach from the pool."""
        if self.role is KVConnectorRole.SCHEDULER:
            self._saver.close()

    def _step_plan(self) -> StepPlan | None:
        return self._get_connector_metadata().plan if self.has_connector_metadata() else None

    def _registered(self) -> HostRows:
        if self._rows is None:
            raise RuntimeError("register_kv_caches was not called: this vLLM gives its connectors no KV caches")
        return self._rows


def _check_interface() -> None:
    """Raise unless the base class has what is overridden, and asks for nothing else."""
    ours = {name for name in vars(RadixKVConnector) if not name.startswith("_")} - {
        "supports_sleep_mode",
        "requires_kv_delivery",
    }
    missing = sorted(ours - set(dir(KVConnectorBase_V1)))
    unknown = sorted(RadixKVConnector.__abstractmethods__)
    if missing or unknown:
        raise ImportError(
            "radixkv.connectors.vllm is for the KV connectors of vLLM 0.33: "
            f"this vLLM never calls {missing}, and needs {unknown}"
        )


def _check(options: dict[str, Any], vllm_config: Any, kv_cache_config: Any) -> tuple[int, int]:
    """Rows of the host pool and tokens per block, once all is in its bounds."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ValueError(f"kv_connector_extra_config: unknown options {unknown}; must be among {sorted(OPTIONS)}")
    num_rows = options.get("num_blocks")
    if type(num_rows) is not int or num_rows < 1:
        raise ValueError(f"kv_connector_extra_config: num_blocks is {num_rows!r}; must be an integer of at least 1")
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ValueError(f"RadixKVConnector: {name} is {getattr(parallel, name)}; must be 1")
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"RadixKVConnector: the model has {len(groups)} KV cache groups; must be 1")
    spec = groups[0].kv_cache_spec
    specs = getattr(spec, "kv_cache_specs", {"": spec}).values()
    others = sorted({type(each).__name__ for each in specs} - FULL_ATTENTION)
    if others:
        raise ValueError(f"RadixKVConnector: the model's KV is of {others}; must be of {sorted(FULL_ATTENTION)}")
    return num_rows, spec.block_size


def _holder(options: dict[str, Any], shape: PoolShape) -> CacheHolder:
    """The host pool's index, empty: in this process, or held at a service."""
    if not options.get("address"):
        return PrefixCache(shape.num_blocks, shape.block_size)
    from radixkv.client import Credentials, connect

    paths = {
        name: Path(options[name])
        for name in ("token_file", "ca_file", "certificate_file", "key_file")
        if name in options
    }
    return connect(
        options["address"],
        shape,
        holder_name="vllm",
        credentials=Credentials(token=options.get("token"), **paths),
    )


def _scheduled(output: Any) -> Iterator[Scheduled]:
    """Requests of a step, with the tokens they have when it is done."""
    num_new = output.num_scheduled_tokens
    for request in output.scheduled_new_reqs:
        num_computed = request.num_computed_tokens + num_new[request.req_id]
        yield Scheduled(request.req_id, num_computed, request.block_ids[0], replaces=True)
    cached = output.scheduled_cached_reqs
    for request_id, block_ids, num_before in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        yield Scheduled(
            request_id,
            num_before + num_new[request_id],
            block_ids[0] if block_ids else (),
            replaces=request_id in cached.resumed_req_ids,
        )


_check_interface()
