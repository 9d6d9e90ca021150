"""radixkv compared with llama.cpp and transformers' continuous batching: the same model file, the same requests, one run.

Every system runs in a separate process with its best thread settings and options, alone on the machine during its
measurements; the systems take turns within every repeat. All of them stream: radixkv over gRPC (cache service and
worker in separate processes), llama.cpp over HTTP, transformers in the client's process. Each starts every workload with
an empty cache and 65,536 token slots of KV memory.

    python -m bench.serving --peer fetch     fetch xllamacpp and the GGUF file once (180 MB), then measure everything: three
                                             repeats of ten minutes, and ten for transformers' 512 questions, measured once;
                                             Ctrl-C after the first repeat ends with the complete ones
    python -m bench.serving                  as above, with the files fetched before
    python -m bench.serving --workload drafts --workload trees --system radixkv --repeats 1
    python -m bench.serving --system radixkv --system 'radixkv, 3 workers'    one worker, and a gateway's choice of three
    python -m bench.serving --quick          radixkv alone on small sizes, less than a minute: are no tokens computed twice?

Before timing, each system generates greedily for eight short prompts, and most first tokens must agree: they all run the
same model. Every reply must have the requested length. Replies still differ between systems (rounding, seeds), so the
information limit is computed from each system's own replies.

Exit code of a full run: 0 if every bar is met, otherwise 1. A quick run judges only the tokens computed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Progress, Report, bench_parser
from bench.serving.driver import NUM_WORKERS, Driver, DriverConfig, DriverError
from bench.serving.figures import OURS, Figures, as_document, bars, prefill_bars, prefill_seconds, summarise_runs, table
from bench.serving.llama_files import LLAMA_PACKAGE, find_llama
from bench.serving.made_up import MadeUp
from bench.serving.material import Material
from bench.serving.plan import Call, Workload
from bench.serving.system import Run, kv_token_bytes
from bench.serving.workloads import WORKLOADS, Ingredients
from bench.tree.wheel import PeerMissingError
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["main"]

LLAMA, TRANSFORMERS = "llama.cpp", "transformers"
PEERS = (LLAMA, TRANSFORMERS)
FULL_REPEATS = 3
PREFILL_LENGTHS = (64, 256, 1024, 3072)
SMALLEST_ID, LARGEST_ID = 1_000, 40_000
LEAST_AGREEMENT = 0.75


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("serving", __doc__)
    parser.add_argument(
        "--workload", action="append", choices=WORKLOADS, help="one of them; may be repeated (default: all)"
    )
    systems = (*NUM_WORKERS, *PEERS)
    parser.add_argument(
        "--system", action="append", choices=systems, help="one of them; may be repeated (default: all)"
    )
    parser.add_argument("--repeats", type=int, help=f"runs of each (default: {FULL_REPEATS}; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sizes; radixkv alone unless --system names others")
    parser.add_argument(
        "--peer",
        choices=("use", "fetch"),
        default="use",
        help="use: files fetched before (default); fetch: fetch missing files for llama.cpp",
    )
    parser.add_argument(
        "--workloads", type=Path, default=default_workloads(), help="folder of the archives (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of choices and draws (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/serving.json on a full run)")
    return parser.parse_args(arguments)


def choose_workloads(options: argparse.Namespace, text: ChatText) -> list[Workload]:
    """Workloads from the archives; in a quick run from made-up texts if those are missing.

    Raises:
        WorkloadMissingError: an archive is missing in a full run.
    """
    names = options.workload or list(WORKLOADS)
    material = Material(options.workloads)
    try:
        return [WORKLOADS[name](Ingredients(material, text, options.seed, options.quick)) for name in names]
    except WorkloadMissingError as error:
        if not options.quick:
            raise
        print(f"made-up texts in place of real ones: {error}", file=sys.stderr)
        made_up = MadeUp(options.seed)
        return [WORKLOADS[name](Ingredients(made_up, text, options.seed, options.quick)) for name in names]


def same_model_check(text: ChatText) -> Workload:
    """Eight short questions, greedy; also warms the systems up."""
    ingredients = Ingredients(MadeUp(0), text, 0, True)
    questions = (
        "What is the capital of France?",
        "How many days has a week?",
        "What is two plus two?",
        "Name a primary colour.",
        "What do bees make?",
        "Which planet do we live on?",
        "What is the opposite of hot?",
        "Who wrote Hamlet?",
    )
    lanes = tuple(((Call((ingredients.opening(question),), 4),),) for question in questions)
    return Workload("same model", "", lanes, 4)


def agreement(one: Run, other: Run) -> float:
    """Share of calls whose first token is the same."""
    pairs = list(zip(one.outcomes, other.outcomes, strict=True))
    return sum(a.replies[0][0] == b.replies[0][0] for a, b in pairs) / len(pairs)


def prefill_only(seed: int, is_quick: bool) -> Workload:
    """Prompts without sharing, one after another, for one token each. The first warms the system up."""
    source = random.Random(seed)
    lengths = [PREFILL_LENGTHS[0], *(PREFILL_LENGTHS[:2] if is_quick else PREFILL_LENGTHS)]
    prompts = [tuple(source.choices(range(SMALLEST_ID, LARGEST_ID), k=length)) for length in lengths]
    return Workload("prefill", "", tuple(((Call((prompt,), 1),),) for prompt in prompts), 1)


def open_systems(options: argparse.Namespace, model: str, stack: ExitStack) -> tuple[dict[str, Driver], dict[str, str]]:
    """The available systems, radixkv first, and the reasons why others are missing."""
    names = options.system or ([OURS] if options.quick else [OURS, *PEERS])
    drivers: dict[str, Driver] = {}
    missing = {name: "left out by --system" for name in PEERS if name not in names}
    for name in dict.fromkeys([OURS, *names]):
        try:
            llama = find_llama(options.peer == "fetch") if name == LLAMA else None
            config = DriverConfig(model, kv_token_bytes(Path(model)), llama)
            drivers[name] = stack.enter_context(Driver(name, config))
        except PeerMissingError as error:
            missing[name] = str(error)
            print(f"without {name}: {error}", file=sys.stderr)
    return drivers, missing


class Bench:
    """All runs of one call of this command."""

    def __init__(self, drivers: dict[str, Driver], workloads: Sequence[Workload], options: argparse.Namespace) -> None:
        self.drivers = drivers
        self.workloads = workloads
        self.num_repeats = options.repeats or (1 if options.quick else FULL_REPEATS)
        self.runs: dict[tuple[str, str], list[Run]] = {}
        self.prefills: dict[str, list[Run]] = {name: [] for name in drivers}
        self._seed = options.seed
        self._is_quick = options.quick

    def check_model(self, text: ChatText) -> dict[str, float]:
        """Agreement of first tokens with radixkv, by peer.

        Raises:
            AssertionError: it is too low for the same model.
        """
        checks = {name: driver.run(same_model_check(text)) for name, driver in self.drivers.items()}
        found = {name: agreement(checks[OURS], run) for name, run in checks.items() if name != OURS}
        for name, share in found.items():
            if share < LEAST_AGREEMENT:
                raise AssertionError(f"{name} agrees with radixkv on {share:.0%} of first tokens: not the same model")
        return found

    def run(self) -> None:
        """Run all workloads in every repeat, and within each the systems in turn, another one first each time.

        Ctrl-C after the first repeat ends with the complete repeats.
        """
        turns = sum(1 if workload.is_long else self.num_repeats for workload in self.workloads) + self.num_repeats
        progress = Progress("runs", turns * len(self.drivers))
        for repeat in range(self.num_repeats):
            try:
                self._repeat(repeat, progress)
            except KeyboardInterrupt:
                if not repeat:
                    raise
                self.num_repeats = repeat
                for runs in (*self.runs.values(), *self.prefills.values()):
                    del runs[repeat:]
                return

    def _repeat(self, number: int, progress: Progress) -> None:
        names = list(self.drivers)
        order = names[number % len(names) :] + names[: number % len(names)]
        prefill = prefill_only(self._seed + number, self._is_quick)
        self._turn(order, prefill, lambda name, run: self.prefills[name].append(run), progress)
        for workload in self.workloads:
            if not number or not workload.is_long:
                self._turn(order, workload, self._keeper(workload), progress)

    def _keeper(self, workload: Workload) -> Callable[[str, Run], None]:
        return lambda name, run: self.runs.setdefault((workload.name, name), []).append(run)

    def _turn(
        self, order: Sequence[str], workload: Workload, keep: Callable[[str, Run], None], progress: Progress
    ) -> None:
        for name in order:
            keep(name, self.drivers[name].run(workload))
            progress.advance()

    def figures(self, workload: Workload, token_bytes: int) -> dict[str, Figures]:
        """Figures by system."""
        return {
            name: summarise_runs(
                workload, self.runs[workload.name, name], prefill_seconds(self.prefills[name]), token_bytes
            )
            for name in self.drivers
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    model = resolve_model()
    text = ChatText(model)
    try:
        workloads = choose_workloads(options, text)
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    token_bytes = kv_token_bytes(Path(model))
    report = Report("serving", options.seed)
    try:
        with ExitStack() as stack:
            drivers, missing = open_systems(options, model, stack)
            bench = Bench(drivers, workloads, options)
            agreements = bench.check_model(text)
            bench.run()
            described = {name: driver.described for name, driver in drivers.items()}
    except DriverError as error:
        print(error, file=sys.stderr)
        return 1
    documents: list[dict[str, Any]] = []
    why_missing = "; ".join(missing.values())
    prefills = {name: prefill_seconds(runs) for name, runs in bench.prefills.items()}
    peers = () if options.quick else tuple(name for name in PEERS if not options.system or name in options.system)
    report.bars += prefill_bars(prefills, peers, why_missing)
    for workload in workloads:
        by_system = bench.figures(workload, token_bytes)
        report.tables.append(table(workload, by_system))
        report.bars += bars(workload, by_system, peers, why_missing)
        documents.append(
            {"workload": workload.name, "about": workload.about}
            | {name: as_document(figures) for name, figures in by_system.items()}
        )
    report.figures = {
        "model": Path(model).name,
        "llama_package": LLAMA_PACKAGE if LLAMA in drivers else None,
        "systems": described,
        "missing": missing,
        "agreement_of_first_tokens": agreements,
        "prefill_seconds": prefills,
        "num_repeats": bench.num_repeats,
        "workloads": documents,
    }
    is_full = not options.quick and options.workload is None and options.system is None
    return report.finish(options.json or (RESULTS_DIR / "serving.json" if is_full else None))


if __name__ == "__main__":
    sys.exit(main())
