"""Memory of a model, planned from its configuration alone: nothing is loaded, and mostly not even torch.

read_config(name)         a folder, a config.json, a Hugging Face id or a published model's name -> ModelConfig
ModelShape.of(config)     parameters; KV of each layer per token
plan_memory(shape, ...)   bytes of weights, KV, blocks; tokens and sequences that fit
"""

from radixkv.planner.config import ModelConfig, read_config
from radixkv.planner.dtypes import DTYPES, KV_DTYPES, KVDtype
from radixkv.planner.errors import PlanError
from radixkv.planner.fit import BLOCK_SIZES, check_block_size, check_fit, count_blocks
from radixkv.planner.plan import Device, Load, MemoryPlan, plan_memory
from radixkv.planner.published import PUBLISHED
from radixkv.planner.shape import LayerKV, ModelShape
from radixkv.planner.sizes import format_bytes, parse_bytes

__all__ = [
    "BLOCK_SIZES",
    "DTYPES",
    "KV_DTYPES",
    "PUBLISHED",
    "Device",
    "KVDtype",
    "LayerKV",
    "Load",
    "MemoryPlan",
    "ModelConfig",
    "ModelShape",
    "PlanError",
    "check_block_size",
    "check_fit",
    "count_blocks",
    "format_bytes",
    "parse_bytes",
    "plan_memory",
    "read_config",
]
