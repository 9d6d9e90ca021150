"""Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) over the cached latents, without expanding them to heads.

    a token keeps one row    [c, r]          c [rank], from which each head makes K and V; r, the rotated part of every K
    expanded to heads        k = [W_UK c, r]    v = W_UV c             p = softmax(scale q . k)            o = sum p v
    absorbed by queries      q' = [q_plain W_UK, q_rotated]            p = softmax(scale q' . [c, r])      o = W_UV sum p c

transformers expands rows to heads in a separate method, `expand_kv`, which servers are meant to bypass (pull request 47460
there). So only that method is replaced here; projections, norms, rotary embeddings and scale stay the module's own code.

Cost, for H heads of DeepSeek's widths: a token takes 576 numbers instead of H x 320. A query absorbs W_UK and W_UV with as many
products as its own K and V would take; then 576 + 512 products per head and key replace 192 + 128. So attention computes up to
3.4 times as much and reads far less: faster where reading is the bound, as in decoding on a GPU. On a CPU core only memory is
saved: with two layers of DeepSeek-V2-Lite's widths a decoding step takes 0.8 to 1.4 times as long as over expanded heads, a
chunk of 256 queries 1.3 to 1.6 times at the start of a prompt and 2.5 to 3.6 times after 1,800 tokens.

Chunks are absorbed too, on the same path. Expanding the cached rows for a chunk of T queries takes 512 x 256 products per head
for each of L tokens of context, less than absorbing only where T > L / (1 + L / 171), and memory for all those heads at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from radixkv.kernels.gpu.launch import holds_latents
from radixkv.worker.model.shares import share_of

__all__ = ["LatentHeads", "absorb_latents", "latent_heads_of"]

_KNOWN = frozenset(
    {
        "DeepseekV2Attention",
        "DeepseekV3Attention",
        "Glm4MoeLiteAttention",
        "MiniCPM3Attention",
        "YoutuAttention",
    }
)
"""Classes of transformers that pass the result of `expand_kv`, and queries [plain, rotated], unchanged to the attention
function. `planner.shape` has the model types.
"""

_SIZES = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim")


class LatentHeads(torch.nn.Module):
    """Expands latents to K and V, W_UK [H, plain, rank] and W_UV [H, Dv, rank]; replaces the module's `kv_b_proj`."""

    def __init__(self, weight: Tensor, key_dim: int) -> None:
        """`weight` [H, key_dim + Dv, rank]."""
        super().__init__()
        # Separate buffers: a bf16 product with part of a matrix copies it in every call, 1.0 ms instead of 0.1 for W_UV.
        self.register_buffer("keys", weight[:, :key_dim].clone())
        self.register_buffer("values", weight[:, key_dim:].clone())

    @property
    def rank(self) -> int:
        """Columns of a row that values are computed from."""
        return self.get_buffer("values").shape[2]

    def absorb(self, query: Tensor) -> Tensor:
        """Queries [T, H, plain + rotated] projected to rows: [T, H, rank + rotated]."""
        keys = self.get_buffer("keys")
        plain, rotated = query.tensor_split((keys.shape[1],), dim=2)
        return torch.cat((torch.bmm(plain.transpose(0, 1), keys).transpose(0, 1), rotated), dim=2)

    def expand(self, attended: Tensor) -> Tensor:
        """Sums of latents [T, H, rank] as sums of values: [T, H, Dv]."""
        return torch.bmm(attended.transpose(0, 1), self.get_buffer("values").transpose(1, 2)).transpose(0, 1)


def absorb_latents(model: torch.nn.Module) -> int:
    """Make every known latent attention return rows as its keys, with its heads absorbed by queries and output.

    Takes as much memory as the matrices it replaces, plus one layer's meanwhile. They keep their dtype, even if other layers
    are rounded later. Unknown attention still expands its latents, and so does one on a GPU whose rank its kernels do not take.

    Returns:
        The number of changed modules.
    """
    modules: list[Any] = [module for module in model.modules() if _is_known(module)]
    for module in modules:
        _, rank, key_dim, value_dim = _sizes(module)
        weight = share_of(module.kv_b_proj.weight.detach()).view(-1, key_dim + value_dim, rank)
        module.kv_b_proj = LatentHeads(weight, key_dim)
        module.expand_kv = _keep_rows
    return len(modules)


def latent_heads_of(module: torch.nn.Module) -> LatentHeads | None:
    """The heads that `absorb_latents` put into this attention; None if it did not."""
    heads = getattr(module, "kv_b_proj", None)
    return heads if isinstance(heads, LatentHeads) else None


def _is_known(module: Any) -> bool:
    cls = type(module)
    if cls.__name__ not in _KNOWN or not cls.__module__.startswith("transformers.models."):
        return False
    if not hasattr(module, "expand_kv") or type(module.kv_b_proj) is not torch.nn.Linear:
        return False  # an earlier transformers, or weights quantised when loaded
    num_heads, rank, key_dim, value_dim = _sizes(module)
    if module.kv_b_proj.weight.is_cuda and not holds_latents(rank, int(module.qk_rope_head_dim)):
        return False
    return module.kv_b_proj.bias is None and module.kv_b_proj.weight.shape == (num_heads * (key_dim + value_dim), rank)


def _sizes(module: Any) -> tuple[int, ...]:
    return tuple(int(getattr(module, name)) for name in _SIZES)


def _keep_rows(latents: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces `expand_kv`: [1, 1, T, rank] and [1, 1, T, rotated] to rows [1, 1, T, rank + rotated], for K and for V."""
    rows = torch.cat((latents, rotated), dim=-1)
    return rows, rows
