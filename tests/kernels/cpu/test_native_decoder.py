"""The native decoder against its formula in float64, on every level that this machine can run."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from paged_cases import NATIVE_LEVELS
from torch import Tensor

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import allocate_kv, plan_attention
from radixkv.kernels.cpu import native_decoder, rounded_linear
from radixkv.kernels.cpu.native_decoder import DecoderLayer, DecoderWeights, NativeDecoder
from radixkv.kernels.cpu.rounded_linear import Linear, concatenate_rounded, linear_int8_reference, quantise_int8
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.rotation import rotate
from radixkv.kernels.runtime.huge_pages import HugePages
from radixkv.kernels.runtime.native_build import build_native
from radixkv.kernels.spec import AttentionSpec

RELATIVE_ERRORS = {torch.float32: 1e-4, torch.bfloat16: 5e-3}
"""In fp32 what the matrices multiply has 15 bits, and a number next to a half is rounded the one way or the other."""
NUM_BLOCKS, BLOCK_SIZE = 24, 4
EPSILON = 1e-5
UNWRITTEN_CODE = 0x7F  # of fp8: NaN

Keep = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""What attention reads of a layer, of K and V [Hkv, T, D] in float64."""


@pytest.fixture(params=NATIVE_LEVELS, autouse=True)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(str(build_native(request.param)))
    for module in (rounded_linear, native_decoder):
        monkeypatch.setattr(module, "native_library", lambda: library)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


class Toy:
    """Random weights of a small decoder, plain and as the kernel takes them."""

    def __init__(self, dtype: torch.dtype, **traits: Any) -> None:
        self.dtype = dtype
        self.num_heads, self.num_kv_heads, self.dim = traits.get("heads", (4, 2, 16))
        self.hidden_size, self.intermediate_size, self.num_layers, self.vocabulary = 64, 128, 2, 51
        self.spec = AttentionSpec(self.dim**-0.5, traits.get("window"), traits.get("softcap"))
        self._with_bias = traits.get("bias", False)
        self._generator = torch.Generator().manual_seed(7)
        q_size, kv_size = self.num_heads * self.dim, self.num_kv_heads * self.dim
        sizes = {
            "q": (q_size, self.hidden_size),
            "k": (kv_size, self.hidden_size),
            "v": (kv_size, self.hidden_size),
            "out": (self.hidden_size, q_size),
            "gate": (self.intermediate_size, self.hidden_size),
            "up": (self.intermediate_size, self.hidden_size),
            "down": (self.hidden_size, self.intermediate_size),
        }
        self.layers: list[dict[str, Any]] = []
        for _ in range(self.num_layers):
            layer: dict[str, Any] = {name: self._linear(*size) for name, size in sizes.items()}
            layer |= {name: 1 + 0.3 * self._random(self.hidden_size) for name in ("norm", "mlp_norm")}
            has_head_norms = traits.get("head_norms", False)
            layer |= {
                name: 1 + 0.3 * self._random(self.dim) if has_head_norms else None for name in ("q_norm", "k_norm")
            }
            self.layers.append(layer)
        self.embeddings = self._random(self.vocabulary, self.hidden_size).to(self.dtype)
        self.head = self._linear(self.vocabulary, self.hidden_size)
        self.last_norm = 1 + 0.3 * self._random(self.hidden_size)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def draw(self, num_tokens: int) -> list[int]:
        """Random token ids."""
        return torch.randint(self.vocabulary, (num_tokens,), generator=self._generator).tolist()

    def _linear(self, num_outputs: int, num_inputs: int) -> tuple[Tensor, Tensor | None]:
        weight = (self._random(num_outputs, num_inputs) * num_inputs**-0.5).to(self.dtype)
        return weight, self._random(num_outputs) if self._with_bias else None

    def weights(self) -> DecoderWeights:
        return DecoderWeights(
            embeddings=self.embeddings,
            layers=[self._layer(layer) for layer in self.layers],
            head=_joined(self.head),
            last_norm=self.last_norm,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.dim,
            norm_epsilon=EPSILON,
        )

    def _layer(self, layer: dict[str, Any]) -> DecoderLayer:
        return DecoderLayer(
            qkv=_joined(layer["q"], layer["k"], layer["v"]),
            attention_out=_joined(layer["out"]),
            gate_up=_joined(layer["gate"], layer["up"]),
            down=_joined(layer["down"]),
            attention_norm=layer["norm"],
            mlp_norm=layer["mlp_norm"],
            q_norm=layer["q_norm"],
            k_norm=layer["k_norm"],
            attention=self.spec,
        )

    def expect(self, token_ids: list[int], keep: Keep = lambda _, k, v: (k, v)) -> Tensor:
        """Logits after every token of one sequence, in float64."""
        hidden = self.embeddings[token_ids].double()
        positions = torch.arange(hidden.shape[0])
        cosines, sines = (angles.double() for angles in self.angles(len(token_ids)))
        visible = positions[None] <= positions[:, None]
        if self.spec.sliding_window is not None:
            visible &= positions[None] > positions[:, None] - self.spec.sliding_window
        for number, layer in enumerate(self.layers):
            x = _norm(hidden, layer["norm"])
            q, k, v = (_multiply(x, layer[name]).unflatten(1, (-1, self.dim)).transpose(0, 1) for name in "qkv")
            q, k = (
                _rotate(_norm(heads, layer[f"{name}_norm"]), cosines, sines) for heads, name in ((q, "q"), (k, "k"))
            )
            kept = keep(number, k, v)
            k, v = (heads.repeat_interleave(self.num_heads // self.num_kv_heads, dim=0) for heads in kept)
            scores = q @ k.mT * self.spec.scale
            if self.spec.softcap is not None:
                scores = self.spec.softcap * torch.tanh(scores / self.spec.softcap)
            found = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
            hidden = hidden + _multiply(found.transpose(0, 1).flatten(1), layer["out"])
            x = _norm(hidden, layer["mlp_norm"])
            gated = torch.nn.functional.silu(_multiply(x, layer["gate"])) * _multiply(x, layer["up"])
            hidden = hidden + _multiply(gated, layer["down"])
        return _multiply(_norm(hidden, self.last_norm), self.head)

    def angles(self, num_positions: int) -> tuple[Tensor, Tensor]:
        turns = torch.arange(num_positions)[:, None] * torch.logspace(0, -2, self.dim // 2, dtype=torch.float64)
        both = torch.cat((turns, turns), dim=1)
        return both.cos().float(), both.sin().float()


def _joined(*linears: tuple[Tensor, Tensor | None]) -> Linear:
    quantised = [quantise_int8(weight) for weight, _ in linears]
    whole, _ = concatenate_rounded(quantised, HugePages(1 << 20))
    biases = [bias for _, bias in linears if bias is not None]
    return Linear(whole, torch.cat(biases) if biases else None)


def _norm(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def _multiply(x: Tensor, linear: tuple[Tensor, Tensor | None]) -> Tensor:
    return linear_int8_reference(x, *linear)


class Served:
    """Sequences of a toy's kernel over one pool, whose unwritten slots hold NaN, or codes and scales that are."""

    def __init__(self, toy: Toy, kv_format: KVFormat | None = None) -> None:
        self.toy = toy
        self.decoder = NativeDecoder(toy.weights())
        sizes = (BLOCK_SIZE, toy.num_kv_heads, toy.dim, toy.dtype, "cpu")
        self.whole = [allocate_kv(NUM_BLOCKS + 1, *sizes, format=kv_format) for _ in toy.layers]
        for tensor in self.tensors():
            if tensor.element_size() == 1:
                tensor.view(torch.uint8).fill_(UNWRITTEN_CODE)
            else:
                tensor.fill_(torch.nan)
        self.caches = []  # what lies before them must stay as it is
        for cache in self.whole:
            k, v, k_scales, v_scales = (
                None if tensor is None else tensor[1:] for tensor in (cache.k, cache.v, cache.k_scales, cache.v_scales)
            )
            assert k is not None
            assert v is not None
            part = replace(cache, k=k, v=v, k_scales=k_scales, v_scales=v_scales, num_blocks=NUM_BLOCKS)
            self.caches.append(part)
        self.free = list(range(NUM_BLOCKS))
        random.Random(3).shuffle(self.free)

    def tensors(self) -> list[Tensor]:
        return [tensor for cache in self.whole for tensor in cache.tensors]

    def stored(self, layer: int, table: array[int], num_tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Codes and scales of K and of V of a sequence in a quantised cache, each [Hkv, T, .]."""
        slots = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(num_tokens)]
        rows = [tensor.flatten(0, 1)[slots].transpose(0, 1) for tensor in self.caches[layer].token_major()]
        return [(rows[0], rows[2]), (rows[1], rows[3])]

    def take(self, num_tokens: int) -> array[int]:
        return array("i", [self.free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))])

    def run(
        self, parts: list[tuple[list[int], int, array[int]]], num_stored: int = 0, kept: list[int] | None = None
    ) -> Tensor:
        """Each part: token ids, their first position, a block table. Logits of the tokens in `kept`, or of all."""
        logits = self.run_unless(None, parts, num_stored, kept)
        assert logits is not None
        return logits

    def run_unless(
        self,
        is_unwanted: ctypes.c_int32 | None,
        parts: list[tuple[list[int], int, array[int]]],
        num_stored: int = 0,
        kept: list[int] | None = None,
    ) -> Tensor | None:
        lengths = [len(tokens) for tokens, _, _ in parts]
        ends = [start + len(tokens) for tokens, start, _ in parts]
        batch = plan_attention(lengths, ends, [table for _, _, table in parts], BLOCK_SIZE, "cpu")
        positions = [p for (_, start, _), end in zip(parts, ends, strict=True) for p in range(start, end)]
        slots = [
            table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE if p >= num_stored else -1
            for (_, start, table), end in zip(parts, ends, strict=True)
            for p in range(start, end)
        ]
        token_ids = [token for tokens, _, _ in parts for token in tokens]
        wanted = range(len(positions)) if kept is None else kept
        angles = self.toy.angles(max(ends))
        inputs = np.array([token_ids, positions, slots])
        return self.decoder.run(inputs, wanted, *angles, self.caches, batch, is_unwanted)


TRAITS: dict[str, dict[str, Any]] = {
    "llama": {},
    "9/3 heads": {"heads": (3, 1, 64)},
    "bias": {"bias": True},
    "norms of heads": {"head_norms": True},
    "window and cap": {"window": 5, "softcap": 1.5},
    "odd heads": {"heads": (2, 2, 32)},
}


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    return bool((found - expected).norm() <= RELATIVE_ERRORS[dtype] * expected.norm())


@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
@pytest.mark.parametrize("traits", TRAITS.values(), ids=TRAITS)
def test_it_computes_its_formula_in_one_piece_in_chunks_and_token_by_token(
    traits: dict[str, Any], dtype: torch.dtype
) -> None:
    toy = Toy(dtype, **traits)
    served = Served(toy)
    tokens = toy.draw(21)
    expected = toy.expect(tokens)
    assert close(served.run([(tokens, 0, served.take(21))]), expected, dtype)
    table = served.take(21)
    pieces = [served.run([(tokens[start:end], start, table)]) for start, end in ((0, 7), (7, 17), (17, 18), (18, 21))]
    assert close(torch.cat(pieces), expected, dtype)


@pytest.mark.parametrize("dtype", RELATIVE_ERRORS, ids=str)
@pytest.mark.parametrize("kv_format", KVFormat)
@pytest.mark.parametrize("traits", TRAITS.values(), ids=TRAITS)
def test_over_codes_it_stores_k_and_v_as_near_as_the_format_can_and_attends_to_what_it_stored(
    traits: dict[str, Any], kv_format: KVFormat, dtype: torch.dtype
) -> None:
    toy = Toy(dtype, **traits)
    served = Served(toy, kv_format)
    tokens, table = toy.draw(21), served.take(21)
    pieces = [served.run([(tokens[start:end], start, table)]) for start, end in ((0, 10), (10, 20), (20, 21))]

    def keep(layer: int, *exact: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for (codes, scales), rows in zip(served.stored(layer, table, 21), exact, strict=True):
            numbers, wanted = kv_format.dequantise(codes, scales).double(), rotate(rows)
            noise = RELATIVE_ERRORS[dtype] * wanted.abs().amax(-1, keepdim=True)  # of what the layers before computed
            assert bool(((numbers - wanted).abs() <= half_steps(kv_format, wanted, scales) + noise).all())
            found.append(rotate(numbers))
        return found[0], found[1]

    assert close(torch.cat(pieces), toy.expect(tokens, keep), dtype)


def half_steps(kv_format: KVFormat, rows: Tensor, scales: Tensor) -> Tensor:
    """By how much what is dequantised may be off, as `KVFormat.quantise` tells."""
    if kv_format is KVFormat.INT8:
        return scales.double() / 2
    if kv_format is KVFormat.FP8:
        return torch.maximum(rows.abs() / 16, scales.double() / 1024)
    return scales[..., ::2].double().repeat_interleave(rows.shape[-1] * 2 // scales.shape[-1], dim=-1) / 2


def test_branches_of_one_prefix_in_one_step_beside_a_prompt() -> None:
    toy = Toy(torch.float32)
    served = Served(toy)
    prefix, prompt = toy.draw(8), toy.draw(5)
    turns = [toy.draw(2) for _ in range(3)]
    shared = served.take(8)
    served.run([(prefix, 0, shared)])
    tables = [shared + served.take(2) for _ in turns]
    served.run([(turn[:1], 8, table) for turn, table in zip(turns, tables, strict=True)])
    parts = [(turn[1:], 9, table) for turn, table in zip(turns, tables, strict=True)]
    found = served.run([*parts, (prompt, 0, served.take(5))])
    expected = [toy.expect(prefix + turn)[-1:] for turn in turns]
    assert close(found, torch.cat([*expected, toy.expect(prompt)]), torch.float32)


@pytest.mark.parametrize("kv_format", [None, *KVFormat])
def test_what_is_stored_already_is_computed_and_not_written(kv_format: KVFormat | None) -> None:
    toy = Toy(torch.float32)
    served = Served(toy, kv_format)
    untouched = [tensor.view(torch.uint8)[0].clone() for tensor in served.tensors()]
    tokens, table = toy.draw(6), served.take(6)
    expected = served.run([(tokens, 0, table)])
    before = [tensor.clone() for tensor in served.tensors()]
    assert close(served.run([(tokens, 0, table)], num_stored=6), expected, torch.float32)
    for tensor, earlier, first in zip(served.tensors(), before, untouched, strict=True):
        assert torch.equal(tensor.view(torch.uint8), earlier.view(torch.uint8))
        assert torch.equal(tensor.view(torch.uint8)[0], first)


def test_a_token_does_not_depend_on_what_else_is_in_the_step() -> None:
    toy = Toy(torch.float32)
    served = Served(toy)
    one, other = (toy.draw(6) for _ in range(2))
    alone = served.run([(one, 0, served.take(6))])
    together = served.run([(other, 0, served.take(6)), (one, 0, served.take(6))])
    assert torch.equal(together[6:], alone)


def test_a_step_that_became_unwanted_is_given_up_and_can_be_run_again() -> None:
    toy = Toy(torch.float32)
    served = Served(toy)
    tokens = toy.draw(21)
    expected = served.run([(tokens, 0, served.take(21))])
    table = served.take(21)
    assert served.run_unless(ctypes.c_int32(1), [(tokens, 0, table)]) is None
    for delay in range(40):
        is_unwanted = ctypes.c_int32()

        def tell(delay: int = delay, flag: ctypes.c_int32 = is_unwanted) -> None:
            time.sleep(delay * 1e-5)
            flag.value = 1

        teller = threading.Thread(target=tell)
        teller.start()
        found = served.run_unless(is_unwanted, [(tokens, 0, table)])
        teller.join()
        assert found is None or torch.equal(found, expected)
        assert torch.equal(served.run([(tokens, 0, table)]), expected)


def test_a_step_of_no_tokens_of_no_logits_and_of_one_tokens_logits_many_times() -> None:
    toy = Toy(torch.float32)
    served = Served(toy)
    assert served.run([(toy.draw(0), 0, array("i"))]).shape == (0, toy.vocabulary)
    tokens, table = toy.draw(3), served.take(3)
    assert served.run([(tokens, 0, table)], kept=[]).shape == (0, toy.vocabulary)
    assert torch.equal(
        served.run([(tokens, 0, table)], kept=[2] * 99), served.run([(tokens, 0, table)])[2].expand(99, -1)
    )


def test_another_default_dtype_changes_nothing() -> None:
    toy = Toy(torch.float32)
    tokens = toy.draw(3)
    served = Served(toy)
    expected = served.run([(tokens, 0, served.take(3))])
    torch.set_default_dtype(torch.bfloat16)  # as transformers does while it loads a model, on any thread
    try:
        found = served.run([(tokens, 0, served.take(3))])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_misfits_are_refused_by_name_and_change_nothing() -> None:
    toy = Toy(torch.float32)
    served = Served(toy)
    batch = plan_attention([2], [2], [array("i", [0])], BLOCK_SIZE, "cpu")
    fitting: dict[str, Any] = {
        "inputs": np.array([[0, 1], [0, 1], [0, 1]]),
        "kept": [1],
        "cosines": torch.zeros(2, toy.dim),
        "sines": torch.zeros(2, toy.dim),
        "caches": served.caches,
        "batch": batch,
    }
    cases: list[tuple[str, Any, str]] = [
        ("inputs", np.array([[0], [0], [0]]), r"inputs\.shape"),
        ("inputs", np.array([[0, 1], [0, 1]]), r"inputs\.shape"),
        ("inputs", np.array([[0, toy.vocabulary], [0, 1], [0, 1]]), "token_ids"),
        ("inputs", np.array([[-1, 0], [0, 1], [0, 1]]), "token_ids"),
        ("inputs", np.array([[0, 1], [0, 2], [0, 1]]), "positions"),
        ("inputs", np.array([[0, 1], [-1, 0], [0, 1]]), "positions"),
        ("cosines", torch.zeros(2, toy.dim + 1), r"cosines\.shape"),
        ("inputs", np.array([[0, 1], [0, 1], [0, NUM_BLOCKS * BLOCK_SIZE]]), "slots"),
        ("kept", [2], "kept"),
        ("kept", [-1], "kept"),
        ("caches", served.caches[:1], r"len\(caches\)"),
        ("caches", Served(Toy(torch.bfloat16)).caches, "caches"),
        ("caches", [served.caches[0], Served(toy, KVFormat.INT8).caches[1]], "caches"),
        ("batch", plan_attention([2], [2], [array("i", [NUM_BLOCKS])], BLOCK_SIZE, "cpu"), r"batch\.highest_block"),
    ]
    for name, value, told in cases:
        with pytest.raises(InvalidArgumentError, match=f"^{told} is "):
            served.decoder.run(**{**fitting, name: value})
    assert all(tensor.isnan().all() for tensor in served.tensors())


def test_weights_that_do_not_fit_each_other_are_refused() -> None:
    weights = Toy(torch.float32).weights()
    layer = weights.layers[0]
    for wrong, name in (
        (replace(layer, gate_up=layer.qkv), "gate_up"),
        (replace(layer, attention_norm=torch.ones(63)), r"attention_norm\.shape"),
        (replace(layer, k_norm=torch.ones(16, dtype=torch.bfloat16)), r"k_norm\.dtype"),
        (replace(layer, attention=AttentionSpec(1.0, sinks=torch.zeros(4))), r"attention\.sinks"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{name} is "):
            NativeDecoder(replace(weights, layers=[wrong, wrong]))
    with pytest.raises(InvalidArgumentError, match=r"^last_norm\.dtype is "):
        NativeDecoder(replace(weights, last_norm=weights.last_norm.double()))
    with pytest.raises(InvalidArgumentError, match=r"^embeddings\.dtype is "):
        NativeDecoder(replace(weights, embeddings=weights.embeddings.double()))
    with pytest.raises(InvalidArgumentError, match=r"^heads is "):
        NativeDecoder(replace(weights, num_kv_heads=3))
