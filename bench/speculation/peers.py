"""Gains by drafts from earlier text: radixkv, llama.cpp's n-gram speculation, and transformers' prompt lookup.

Every system decodes the same prompts, one at a time and with one thread, plainly and with drafts in turns. The prompts are
cached before, and the time is that from a reply's first token to its last. llama.cpp has the very file of radixkv's default
model, in 4 bits; it reports its own times. transformers has float32, in which it is fastest here.

    sweep     each setting of a peer plays a quarter of the requests; the one with the most tokens per second is its best
    measure   radixkv and the best of each peer play all requests, each with its own plain decode in turns

    python -m bench.speculation.peers --peer fetch     half an hour on a core; fetches llama.cpp's package and files if missing
    python -m bench.speculation.peers --quick          a few requests, two settings of each peer; judges nothing
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch

from bench.common.conversations import default_workloads
from bench.common.reference import load_plain
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.serving.llama_files import LlamaFiles, find_llama
from bench.serving.llama_side import llama_server
from bench.serving.material import Material, WorkloadMissingError
from bench.serving.transformers_side import hide_project_folder
from bench.speculation.loads import SEED, Load, loads
from bench.speculation.run import await_rest
from bench.tree.wheel import PeerMissingError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.run import Worker, WorkerConfig

OURS, LLAMA = "radixkv", "llama.cpp"
LOADS = ("few-shot", "agent", "chat", "again", "drawn")
LEAST_OVER_LLAMA = 1.2
"""Of our gain over plain decode: over that of llama.cpp's best setting."""
CONTEXT = 4096
_BLOCK_SIZE = 16
_SIMPLE, _MAP_K, _MAP_K4V, _MOD, _CACHE = range(6, 11)  # numbers of llama.cpp's kinds of speculation


class Reply(NamedTuple):
    """Token ids, and the seconds from the first to the last."""

    tokens: list[int]
    seconds: float


Player = Callable[[GenerateParams], Reply]


class Setting(NamedTuple):
    """A way to draft of a peer. `values`: its parameters by name."""

    name: str
    values: Mapping[str, Any]


def settings_of_llama() -> list[Setting]:
    """Tried of llama.cpp: n-grams of `n` tokens, drafts of `m`."""
    found = []
    for kind, name, sizes in (
        (_SIMPLE, "simple", ((3, 4), (3, 8), (5, 8), (5, 16), (12, 16))),
        (_MAP_K, "map_k", ((3, 8), (5, 8), (5, 16))),
        (_MAP_K4V, "map_k4v", ((5, 8),)),
    ):
        found.append(Setting(f"ngram-{name} (default)", {"speculative.types": [kind]}))
        for n, m in sizes:
            sizes_of_it = {f"speculative.ngram_{name}.size_n": n, f"speculative.ngram_{name}.size_m": m}
            found.append(Setting(f"ngram-{name} n={n} m={m}", {"speculative.types": [kind], **sizes_of_it}))
    found.append(Setting("ngram-mod (default)", {"speculative.types": [_MOD]}))
    for n, m in ((6, 8), (12, 16), (24, 16)):
        named = {f"speculative.ngram_mod.{key}": value for key, value in (("n_match", n), ("n_min", 2), ("n_max", m))}
        found.append(Setting(f"ngram-mod n={n} m={m}", {"speculative.types": [_MOD], **named}))
    found.append(Setting("ngram-cache (default)", {"speculative.types": [_CACHE]}))
    for m in (8, 16):
        values = {"speculative.types": [_CACHE], "speculative.draft.n_max": m}
        found.append(Setting(f"ngram-cache m={m}", values))
    return found


def settings_of_transformers() -> list[Setting]:
    """Tried of transformers: n-grams of up to `n` tokens, drafts of `m`."""
    return [
        Setting(f"prompt lookup n={n} m={m}", {"prompt_lookup_num_tokens": m, "max_matching_ngram_size": n})
        for n, m in ((2, 10), (3, 4), (3, 8))
    ]


class Peer(NamedTuple):
    """Another system. `start` runs it with a setting, without one as it decodes plainly."""

    name: str
    settings: list[Setting]
    start: Callable[[Setting | None], AbstractContextManager[Player]]


@contextmanager
def radixkv_player(is_drafting: bool) -> Iterator[Player]:
    """A worker in this process."""
    config = WorkerConfig(
        listen=None, num_blocks=CONTEXT // _BLOCK_SIZE, device="cpu", speculation="auto" if is_drafting else "off"
    )
    with Worker(config) as worker:

        def play(params: GenerateParams) -> Reply:
            cached = GenerateParams(token_ids=params.token_ids, sampling=SamplingParams(max_tokens=0))
            for _ in worker.engine.generate(cached):
                pass
            tokens: list[int] = []
            first_s = last_s = 0.0
            for event in worker.engine.generate(params):
                if isinstance(event, Delta):
                    last_s = time.monotonic()
                    first_s = first_s or last_s
                    tokens += event.token_ids
            return Reply(tokens, last_s - first_s)

        yield play


@contextmanager
def llama_player(files: LlamaFiles, setting: Setting | None) -> Iterator[Player]:
    """A server in its own process, with one slot."""
    fixed = {"model.path": str(files.q4), "n_ctx": CONTEXT, "n_parallel": 1, "cpuparams.n_threads": 1}
    chosen = dict(setting.values) if setting is not None else {}
    with (
        llama_server(files.package, fixed | chosen) as address,
        httpx.Client(base_url=address, timeout=None, limits=httpx.Limits(max_keepalive_connections=0)) as client,
    ):

        def ask(params: GenerateParams, num_tokens: int) -> Any:
            sampling = params.sampling
            body = {
                "prompt": list(params.token_ids or ()),
                "n_predict": num_tokens,
                "temperature": sampling.temperature,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "seed": sampling.seed or 0,
                "cache_prompt": True,
                "return_tokens": True,
            }
            answer = client.post("/completion", json=body)
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"llama.cpp answered {answer.status_code}: {answer.text[:500]}")
            return answer.json()

        def play(params: GenerateParams) -> Reply:
            ask(params, 0)
            answer = ask(params, params.sampling.max_tokens)
            return Reply(answer["tokens"], answer["timings"]["predicted_ms"] / 1000)

        yield play


class _Clock:
    """Notes when tokens come, as transformers' streamers do."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def put(self, _tokens: torch.Tensor) -> None:
        self.at_s.append(time.monotonic())

    def end(self) -> None:
        """Nothing follows."""


class Transformers:
    """Its model, loaded once."""

    def __init__(self, model: str) -> None:
        hide_project_folder()
        transformers: Any = importlib.import_module("transformers")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._model: Any = load_plain(model, dtype=torch.float32, attn_implementation="sdpa").eval()

    @contextmanager
    def start(self, setting: Setting | None) -> Iterator[Player]:
        """Plays with `generate`, in this process."""
        chosen = dict(setting.values) if setting is not None else {}

        def play(params: GenerateParams) -> Reply:
            sampling, clock = params.sampling, _Clock()
            ids = torch.tensor([list(params.token_ids or ())])
            drawn = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0} if sampling.temperature else {}
            torch.manual_seed(sampling.seed or 0)
            with torch.inference_mode():
                out = self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=sampling.max_tokens,
                    streamer=clock,
                    **({"do_sample": False} | drawn | chosen),
                )
            prompt_s, first_s = clock.at_s[:2]  # the prompt comes at once
            assert prompt_s <= first_s
            return Reply(out[0, ids.shape[1] :].tolist(), clock.at_s[-1] - first_s)

        yield play


class Speed(NamedTuple):
    """Of some requests: tokens per second with drafts, plainly, and how many tokens are those of plain decode."""

    drafted: float
    plain: float
    num_tokens: int
    num_alike: int

    @property
    def gain(self) -> float:
        return self.drafted / self.plain


def compare(plain: Player, drafted: Player, load: Load, num: int) -> Speed:
    """Play `num` requests in turns. Of the load `again`, all are played once before."""
    asked = load.asked[:num]
    if load.name == "again":
        for params in asked:
            drafted(params)
    replies: tuple[list[Reply], list[Reply]] = ([], [])
    for number, params in enumerate(asked):
        for side in (0, 1) if number % 2 else (1, 0):
            replies[side].append((plain, drafted)[side](params))
    num_alike = sum(
        next((at for at, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)) if a != b), len(one.tokens))
        for one, other in zip(*replies, strict=True)
    )
    speeds = [sum(len(reply.tokens) - 1 for reply in side) / sum(reply.seconds for reply in side) for side in replies]
    return Speed(speeds[1], speeds[0], sum(len(reply.tokens) for reply in replies[1]), num_alike)


def sweep(peer: Peer, load: Load, num: int) -> tuple[Setting, dict[str, float]]:
    """The peer's fastest setting, and the gains of all by name."""
    speeds: dict[int, Speed] = {}
    with peer.start(None) as plain:
        for number, setting in enumerate(peer.settings):
            with peer.start(setting) as drafted:
                speeds[number] = compare(plain, drafted, load, num)
            print(f"{load.name}: {setting.name}: {speeds[number].gain:.2f}", file=sys.stderr, flush=True)
    best = max(speeds, key=lambda number: speeds[number].drafted)
    return peer.settings[best], {peer.settings[number].name: speed.gain for number, speed in speeds.items()}


def measure(
    report: Report, load: Load, ours: tuple[Player, Player], peers: Sequence[Peer]
) -> Iterator[tuple[str, ...]]:
    """Add a load's figures and bars to the report. Yields its rows."""
    num = len(load.asked)
    speeds = {OURS: compare(*ours, load, num)}
    names = {OURS: "as by default"}
    swept: dict[str, dict[str, float]] = {}
    for peer in peers:
        setting, swept[peer.name] = sweep(peer, load, max(2, num // 4))
        names[peer.name] = setting.name
        with peer.start(None) as plain, peer.start(setting) as drafted:
            speeds[peer.name] = compare(plain, drafted, load, num)
    over, missing = (speeds[OURS].gain / speeds[LLAMA].gain, "") if LLAMA in speeds else (None, "llama.cpp is missing")
    fastest = max(max(speed.drafted, speed.plain) for name, speed in speeds.items() if name != OURS)
    report.bars += [
        Bar(
            f"{load.name}: gain over plain decode / llama.cpp's",
            over,
            LEAST_OVER_LLAMA,
            "x",
            True,
            missing,
        ),
        Bar(f"{load.name}: tokens/s / the fastest peer's", speeds[OURS].drafted / fastest, 1.0, "x", at_least=True),
    ]
    report.figures[load.name] = {
        name: {"setting": names[name], "gains_by_setting": swept.get(name, {}), "gain": speed.gain, **speed._asdict()}
        for name, speed in speeds.items()
    }
    for name, speed in speeds.items():
        figures = (f"{speed.plain:.1f}", f"{speed.drafted:.1f}", f"{speed.gain:.2f}")
        yield (load.name, name, names[name], *figures, f"{speed.num_alike:,} of {speed.num_tokens:,}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and write the JSON. Returns the exit code."""
    parser = bench_parser("speculation.peers", __doc__)
    parser.add_argument("--quick", action="store_true", help="a few requests; nothing is written")
    parser.add_argument("--requests", type=int, default=16, help="of each load (default: %(default)s)")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=LOADS, help="loads to run (default: all)")
    parser.add_argument("--peer", choices=("fetch",), help="fetch llama.cpp's package and files if missing")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    num, num_tokens = (2, 32) if options.quick else (options.requests, 128)
    report = Report("speculation_peers", SEED)
    model = resolve_model(None)
    try:
        asked = [
            load
            for load in loads(Material(options.workloads), ChatText(model), num, num_tokens)
            if load.name in options.loads
        ]
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    peers = [Peer("transformers", settings_of_transformers(), Transformers(str(model)).start)]
    try:
        peers.insert(0, Peer(LLAMA, settings_of_llama(), partial(llama_player, find_llama(options.peer == "fetch"))))
    except PeerMissingError as error:
        print(f"llama.cpp is left out: {error}", file=sys.stderr)
    if options.quick:
        peers = [peer._replace(settings=peer.settings[:2]) for peer in peers]
    rows: list[tuple[str, ...]] = []
    with radixkv_player(False) as plain, radixkv_player(True) as drafted:
        await_rest()
        for load in asked:
            rows += measure(report, load, (plain, drafted), peers)
    columns = ("load", "system", "best setting", "plain, tokens/s", "with drafts", "gain", "tokens as plainly")
    report.tables.append(Table("one chat, one thread", columns, rows))
    is_kept = not options.quick and tuple(options.loads) == LOADS
    path = options.json or (RESULTS_DIR / "speculation_peers.json" if is_kept else None)
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
