"""vLLM's own scheduler over workers whose KV is a hash of all the KV before it: a wrong byte anywhere changes the reply.

Everything but the model is vLLM's: scheduler, KV cache manager, block pool, requests, aggregation of workers' outputs. Configs
that are needed only to load a model are plain records.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, KVTransferConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig
from vllm.config.ec_manager_config import EncoderCacheManagerConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

BLOCK_SIZE = 4
HEADS, DIM = 2, 3
VOCABULARY = 50
MAX_LENGTH = 256
MAX_STEP_TOKENS = 24
POISON = -1


def next_kv(history: bytes, token: int, adapter: int) -> int:
    """The KV of a token, which follows from the bytes of all KV before it."""
    return int.from_bytes(blake2b(history + token.to_bytes(4) + adapter.to_bytes(4), digest_size=7).digest())


def kv_bytes(value: int) -> torch.Tensor:
    """A token's KV in every layer: [layers, heads, dim]."""
    return value ^ torch.arange(2 * HEADS * DIM).view(2, HEADS, DIM)


def reply_of(prompt: list[int], num_new: int, adapter: int = 0) -> list[int]:
    """The reply without any cache."""
    tokens, history, value = list(prompt), b"", 0
    for position in range(len(prompt) + num_new):
        if position == len(tokens):
            tokens.append(value % VOCABULARY)
        value = next_kv(history, tokens[position], adapter)
        history += kv_bytes(value).numpy().tobytes()
    return tokens[len(prompt) :]


class Worker:
    """A rank that holds one layer, and its connector."""

    def __init__(self, config: Any, kv_config: KVCacheConfig, layer: int) -> None:
        num_blocks = kv_config.num_blocks
        self.layer = layer
        if layer:  # K and V apart, as older FlashAttention caches
            self.cache = torch.full((2, num_blocks, BLOCK_SIZE, HEADS, DIM), POISON)
            self.slots = self.cache[0].view(-1, HEADS, DIM)
        else:  # [blocks, heads, slots, dim], stored slots first
            stored = torch.full((num_blocks, BLOCK_SIZE, HEADS, DIM), POISON)
            self.cache, self.slots = stored.transpose(1, 2), stored.view(-1, HEADS, DIM)
        self.connector = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_config)
        self.lose_memory()

    def lose_memory(self) -> None:
        """Host rows start empty, as those of a worker that was replaced."""
        self.connector.register_kv_caches({f"layers.{self.layer}.attn": self.cache})


class Engine:
    """Requests in, replies out; `step` schedules, computes and, `depth` - 1 steps later, processes the output."""

    def __init__(self, num_blocks: int, extra: dict[str, Any], *, depth: int = 1, is_v2: bool = True) -> None:
        cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
        cache.num_gpu_blocks = num_blocks
        scheduling = SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=MAX_STEP_TOKENS,
            max_model_len=MAX_LENGTH,
            is_encoder_decoder=False,
            async_scheduling=depth > 1,
        )
        scheduling.disable_hybrid_kv_cache_manager = True  # as vLLM sets it for a connector without SupportsHMA
        transfer = KVTransferConfig(
            kv_connector="RadixKVConnector",
            kv_connector_module_path="radixkv.connectors.vllm",
            kv_role="kv_both",
            kv_buffer_device="cpu",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=extra,
        )
        parallel = ParallelConfig()
        parallel.world_size = 2
        model = dict.fromkeys(
            ("uses_mrope", "is_encoder_decoder", "supports_multimodal_inputs", "is_diffusion", "return_sampling_mask"),
            False,
        )
        none = dict.fromkeys(("lora_config", "kv_events_config", "speculative_config", "ec_transfer_config"))
        zero = dict.fromkeys(
            (
                "num_speculative_tokens",
                "num_lookahead_tokens",
                "num_prefill_lookahead_tokens",
                "num_hash_lookahead_tokens",
            ),
            0,
        )
        config = SimpleNamespace(
            cache_config=cache,
            scheduler_config=scheduling,
            kv_transfer_config=transfer,
            parallel_config=parallel,
            observability_config=ObservabilityConfig(),
            ec_manager_config=EncoderCacheManagerConfig(),
            model_config=SimpleNamespace(max_model_len=MAX_LENGTH, runner_type="generate", **model),
            aux_output_config=SimpleNamespace(enabled=False),
            is_mm_encoder_only=False,
            max_in_flight_tokens=MAX_STEP_TOKENS * depth,
            max_concurrent_batches=depth,
            use_v2_model_runner=is_v2,
            **none,
            **zero,
        )
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=DIM, dtype=torch.int64)
        kv_config = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layers.0.attn", "layers.1.attn"], spec)])
        outputs = SimpleNamespace(accept_tokens=lambda *_: True, should_advance=lambda *_: False)
        init_none_hash(sha256)
        make = AsyncScheduler if depth > 1 else Scheduler
        self.scheduler = make(config, kv_config, outputs, block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE)
        self.workers = [Worker(config, kv_config, layer) for layer in range(2)]
        self.requests: dict[str, Request] = {}
        self.num_computed = 0
        self.num_failed_blocks = 0
        self._depth = depth
        self._blocks: dict[str, list[int]] = {}
        self._sampled: dict[str, dict[int, int]] = {}
        self._late: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self._aggregator = KVOutputAggregator(2)

    @property
    def connector(self) -> Any:
        return self.scheduler.connector

    def add(
        self, name: str, prompt: list[int], num_new: int = 6, *, salt: str | None = None, adapter: int = 0
    ) -> Request:
        lora = SimpleNamespace(lora_name=f"adapter-{adapter}", lora_path="", lora_int_id=adapter) if adapter else None
        request = Request(
            name,
            list(prompt),
            SamplingParams(max_tokens=num_new, temperature=0, ignore_eos=True),
            None,
            lora_request=lora,
            cache_salt=salt,
            block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
        )
        self.scheduler.add_request(request)
        self.requests[name] = request
        self._sampled[name] = {}
        return request

    def run(self, name: str, prompt: list[int], num_new: int = 6, **options: Any) -> list[int]:
        """The reply to one request, alone."""
        request = self.add(name, prompt, num_new, **options)
        self.drain()
        return list(request.output_token_ids)

    def drain(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_unfinished_requests() and not self._late:
                break
            self.step()
        else:
            raise AssertionError("requests do not end")
        self.step()  # vLLM's engine steps once more for what has finished

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def evict(self) -> None:
        """vLLM forgets its own prefix cache, and the memory is poisoned. Nothing may be running."""
        assert self.scheduler.reset_prefix_cache()
        for worker in self.workers:
            worker.cache.fill_(POISON)

    def step(self) -> None:
        output = self.scheduler.schedule()
        self._late.append((output, self.execute(output)))
        while len(self._late) >= self._depth or (self._late and not self.scheduler.running):
            self.scheduler.update_from_output(*self._late.popleft())

    def close(self) -> None:
        self.connector.shutdown()

    def execute(self, output: Any) -> ModelRunnerOutput:
        """A step of both workers, with the calls of their connectors in the order of vLLM's model runner."""
        connectors = [worker.connector for worker in self.workers]
        for connector in connectors:
            connector.handle_preemptions(output.kv_connector_metadata)
            connector.bind_connector_metadata(output.kv_connector_metadata)
            if output.has_sync_kv_loads:
                connector.start_load_kv(None)
        sampled = self._forward(output)
        results = []
        for connector in connectors:
            if not output.has_sync_kv_loads:
                connector.start_load_kv(None)
            connector.wait_for_save()
            transfers = connector.get_transfer_results(output.finished_req_ids)
            failed = connector.get_block_ids_with_load_errors()
            self.num_failed_blocks += len(failed)
            report = KVConnectorOutput(
                finished_sending=transfers.finished_sending or None,
                finished_recving=transfers.finished_recving or None,
                invalid_block_ids=failed,
                kv_connector_worker_meta=connector.build_connector_worker_meta(),
            )
            connector.clear_connector_metadata()
            names = list(sampled)
            results.append(
                ModelRunnerOutput(
                    names,
                    {name: index for index, name in enumerate(names)},
                    [sampled[name] for name in names],
                    kv_connector_output=report,
                )
            )
        return self._aggregator.aggregate(results)

    def _forward(self, output: Any) -> dict[str, list[int]]:
        starts = {}
        for request in output.scheduled_new_reqs:
            self._blocks[request.req_id] = list(request.block_ids[0])
            starts[request.req_id] = request.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for name, blocks, start in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                self._blocks[name] = []
            self._blocks[name] += blocks[0] if blocks else []
            starts[name] = start
        return {
            name: self._compute(name, starts[name], starts[name] + num_new)
            for name, num_new in output.num_scheduled_tokens.items()
        }

    def _compute(self, name: str, start: int, end: int) -> list[int]:
        """Write the KV of positions [start, end), each from all KV before it; the token sampled after the last."""
        request, sampled = self.requests[name], self._sampled[name]
        adapter = request.lora_request.lora_int_id if request.lora_request else 0
        slots = torch.tensor(
            [self._blocks[name][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(end)],
            dtype=torch.int64,
        )
        value = 0
        for position in range(start, end):
            layers = torch.stack([worker.slots[slots[:position]] for worker in self.workers], dim=1)
            token = request.all_token_ids[position] if position < request.num_tokens else sampled[position]
            value = next_kv(layers.numpy().tobytes(), token, adapter)
            for worker, kv in zip(self.workers, kv_bytes(value), strict=True):
                worker.slots[slots[position]] = kv
        self.num_computed += end - start
        if end < request.num_tokens:
            return []
        sampled[end] = value % VOCABULARY
        return [sampled[end]]
