"""Share of random bugs that the tests find: small changes drawn at random, one at a time, each tried on the tests that run it.

    python -m bench.mutants --seed 7 --covering unit.json integration.json
    python -m bench.mutants --seed 7 --packages gateway client --number 40 --covering unit.json
    python -m bench.mutants --seed 7 --only 12 31 --covering unit.json          some of this seed's draws

`covering` makes the maps of the tests that run each line. A changed line is drawn first, then one of its changes (`mutations`).
The tests that run its function, those of its line first and quick ones before slow ones, run with it (`planting`) and stop at
the first failure: found. A hang counts as found; `not run` means that the map names a missing test: make it again. Survivors
are printed and written with their line before and after: read each, it is a missing test or changes nothing observable.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.mutants.mutations import Mutation, mutations
from bench.mutants.planting import ROOT, prepare, run_planted

__all__ = ["main"]

PACKAGES = ("worker", "gateway", "client", "service")
MAX_TEST_S = 40.0
TIMEOUT_S = 150.0
ASKED = 0.95
MAX_SHOWN = 60
FOUND = ("found", "hangs")


class Covering(NamedTuple):
    """Contents of the maps: the duration of each test, and the tests that run each line."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]

    @classmethod
    def read(cls, paths: list[Path]) -> Covering:
        covering = cls({}, {})
        for path in paths:
            told = json.loads(path.read_text(encoding="utf-8"))
            covering.seconds.update(told["seconds"])
            for module, lines in told["lines"].items():
                known = covering.lines.setdefault(module, {})
                for line, tests in lines.items():
                    known.setdefault(int(line), []).extend(tests)
        return covering

    def tests(self, module: str, mutation: Mutation) -> list[str]:
        """Tests that run the line, then those that run its function: the quickest first, up to a total time."""
        lines, chosen, left_s = self.lines.get(module, {}), {}, MAX_TEST_S
        for line in (mutation.line, mutation.first_line):
            for test in sorted(lines.get(line, ()), key=self.seconds.__getitem__):
                if test not in chosen and self.seconds[test] <= left_s:
                    chosen[test] = line
                    left_s -= self.seconds[test]
        return list(chosen)


class Mutant(NamedTuple):
    module: str
    mutation: Mutation
    before: str
    after: str

    def verdict(self, covering: Covering, also: list[str], log: Path) -> str:
        """Verdict of the tests that run it, and of `also`."""
        tests = [*covering.tests(self.module, self.mutation), *also]
        if not tests:
            return "no test"
        source = self.mutation.planted((ROOT / self.module).read_bytes())
        return run_planted(self.module, source, tests, log, TIMEOUT_S)


def drawn(folders: list[str], seed: int, number: int) -> list[Mutant]:
    """`number` random lines, and a change of each."""
    places = [ROOT / "radixkv" / folder for folder in folders]
    sources = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for place in places
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
    }
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for module, source in sources.items():
        for mutation in mutations(source):
            by_line.setdefault((module, mutation.line), []).append(mutation)
    chance = random.Random(seed)
    mutants = []
    for module, line in chance.sample(sorted(by_line), min(number, len(by_line))):
        mutation, source = chance.choice(by_line[module, line]), sources[module]
        lines = (source.splitlines(), mutation.planted(source).splitlines())
        before, after = (each[line - 1].decode().strip() for each in lines)
        mutants.append(Mutant(module, mutation, before, after))
    return mutants


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns the exit status: 1 if fewer are found than required."""
    parser = bench_parser("mutants", __doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, default=100, help="how many are drawn (default: 100)")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, metavar="FOLDER", help="of radixkv, or a file")
    parser.add_argument(
        "--covering", nargs="+", type=Path, required=True, metavar="MAP", help="what bench.mutants.covering wrote"
    )
    parser.add_argument("--only", nargs="+", type=int, metavar="INDEX", help="of those that are drawn")
    parser.add_argument("--also", nargs="+", default=[], metavar="TEST", help="run these, too, whatever they cover")
    parser.add_argument("--out", type=Path, default=RESULTS_DIR / "mutants.json")
    options = parser.parse_args(arguments)
    mutants = drawn(options.packages, options.seed, options.number)
    indices = options.only or range(len(mutants))
    verdicts: Counter[str] = Counter()
    survivors: list[dict[str, Any]] = []
    covering, logs = Covering.read(options.covering), Path(tempfile.mkdtemp(prefix="mutants-logs-"))
    print(f"{len(indices)} of {len(mutants)} drawn; what their tests print: {logs}", flush=True)
    prepare()
    progress = Progress("changes tried", len(indices))
    for index in indices:
        mutant, start_s = mutants[index], time.monotonic()
        verdict = mutant.verdict(covering, options.also, logs / f"{index}.log")
        verdicts[verdict] += 1
        if verdict not in FOUND:
            told = {"index": index, "place": f"{mutant.module}:{mutant.mutation.line}", "verdict": verdict}
            told |= {"before": mutant.before, "after": mutant.after, "seconds": round(time.monotonic() - start_s, 1)}
            survivors.append(told)
        progress.advance()
    report = Report("mutants", options.seed, {"drawn": len(indices), **verdicts, "survivors": survivors})
    names = ("place", "before", "after", "verdict")
    rows = [(str(each["index"]), *(each[name][:MAX_SHOWN] for name in names)) for each in survivors]
    report.tables.append(Table("not found", ("drawn", "where", "before", "after", ""), rows))
    share = sum(verdicts[verdict] for verdict in FOUND) / len(indices)
    report.bars.append(Bar("share found, of all that were drawn", share, ASKED, at_least=True))
    return report.finish(options.out)
