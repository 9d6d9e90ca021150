"""Exact answers with KV in fewer bits: tasks with one right answer, next to perplexity (`bench.sizing.kv_quality`).

    copying      a line of five words, to be repeated
    retrieval    one of 12 codes in the prompt
    the rest     tasks of BIG-Bench Hard, answered at once after four questions with their answers; those of which the model
                 answers 30% and more with exact KV

The default model in fp32, greedy, with nothing rounded but KV. An answer is right if it is the task's, letter by letter, up to
the end of its line. An answer is changed if it is not the one with exact KV, right or wrong.

    python -m bench.sizing.kv_tasks              40 questions of a task (half an hour on one core)
    python -m bench.sizing.kv_tasks --quick      copying and retrieval alone, four questions each, as in CI

Bars: with int8 and fp8 at most 1% fewer right answers than with exact KV. Exit code of a full run: 0 if both are met, otherwise
1; 2 if the questions are missing.
"""

from __future__ import annotations

import json
import random
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.gateway import WORDS
from radixkv.generation.params import SamplingParams
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.worker.llm import LLM

__all__ = ["main"]

ARCHIVE, TASK_FOLDER = "big-bench-hard.tar.xz", "/bbh/"
EXACT = "float32"
FORMATS = tuple(kv_format.value for kv_format in (KVFormat.INT8, KVFormat.FP8, KVFormat.INT4))
BOUND_PERCENT = 1.0
LEAST_SCORE = 0.30
NUM_EXAMPLES = 4
LONGEST_CHARACTERS = 6_000
"""Of a question with its examples; tasks with longer ones are left out."""


class Task(NamedTuple):
    """Questions, each with what comes before it, and their answers."""

    name: str
    prompts: list[str]
    answers: list[str]


def copying(num_questions: int, rng: random.Random) -> Task:
    lines = [" ".join(rng.sample(WORDS, 5)) for _ in range(num_questions + 3)]
    start = "".join(f"Text: {line}\nCopy: {line}\n\n" for line in lines[:3])
    return Task("copying", [f"{start}Text: {line}\nCopy:" for line in lines[3:]], lines[3:])


def retrieval(num_questions: int, rng: random.Random) -> Task:
    task = Task("retrieval", [], [])
    while len(task.prompts) < num_questions:
        codes = {word: f"{rng.randrange(100, 1000)}." for word in WORDS}
        told = "".join(f"The code of the {word} is {code}\n" for word, code in codes.items())
        for word in rng.sample(WORDS, min(10, num_questions - len(task.prompts))):
            task.prompts.append(f"{told}\nThe code of the {word} is")
            task.answers.append(codes[word])
    return task


def read_tasks(folder: Path, num_questions: int) -> list[Task]:
    """Tasks of BIG-Bench Hard, by name.

    Raises:
        WorkloadMissingError: the archive, or the tasks in it, are missing.
    """
    if not (folder / ARCHIVE).is_file():
        raise WorkloadMissingError(f"no {ARCHIVE} in {folder}; name its folder by --workloads")
    tasks = []
    with tarfile.open(folder / ARCHIVE, "r:xz") as files:
        for member in files:
            content = (
                files.extractfile(member) if TASK_FOLDER in member.name and member.name.endswith(".json") else None
            )
            if content is None:
                continue
            asked = [(f"Q: {each['input']}\nA:", each["target"]) for each in json.load(content)["examples"]]
            start = "".join(f"{question} {answer}\n\n" for question, answer in asked[:NUM_EXAMPLES])
            questions, answers = zip(*asked[NUM_EXAMPLES : NUM_EXAMPLES + num_questions], strict=True)
            if len(start) + max(map(len, questions)) <= LONGEST_CHARACTERS:
                tasks.append(Task(Path(member.name).stem, [start + each for each in questions], list(answers)))
    if not tasks:
        raise WorkloadMissingError(f"no task in {folder / ARCHIVE}")
    return sorted(tasks)


def answer(tasks: Sequence[Task], kv_dtype: str, progress: Progress) -> dict[str, list[str]]:
    """The model's answers with KV in this dtype, by task."""
    answers = {}
    with LLM(dtype="float32", quantization="none", kv_dtype=kv_dtype, num_blocks=2048) as llm:
        for task in tasks:
            params = SamplingParams(max_tokens=48, temperature=0, stop=["\n"])
            replies = llm.generate(task.prompts, params, progress=False)
            answers[task.name] = [reply.outputs[0].text.strip() for reply in replies]
            progress.advance()
    return answers


def num_right(task: Task, answers: dict[str, list[str]]) -> int:
    return sum(given == right for given, right in zip(answers[task.name], task.answers, strict=True))


def report_of(tasks: Sequence[Task], seed: int) -> Report:
    exact = answer(tasks, EXACT, Progress("tasks, exact KV", len(tasks)))
    chosen = [task for task in tasks if num_right(task, exact) >= LEAST_SCORE * len(task.answers)]
    progress = Progress("tasks, other KV", len(chosen) * len(FORMATS))
    given = {EXACT: exact} | {name: answer(chosen, name, progress) for name in FORMATS}
    right = {name: {task.name: num_right(task, answers) for task in chosen} for name, answers in given.items()}
    changed = {
        name: sum(a != b for task in chosen for a, b in zip(answers[task.name], exact[task.name], strict=True))
        for name, answers in given.items()
    }
    num_asked = sum(len(task.answers) for task in chosen)
    totals = {name: sum(each.values()) for name, each in right.items()}
    report = Report("kv_tasks", seed)
    report.figures = {
        "questions": {task.name: len(task.answers) for task in chosen},
        "left_out": {task.name: num_right(task, exact) for task in tasks if task not in chosen},
        "right": right,
        "right_in_all": totals,
        "changed": changed,
    }
    rows = [(task.name, f"{len(task.answers)}", *(f"{right[name][task.name]}" for name in given)) for task in chosen]
    rows.append(("all", f"{num_asked}", *(f"{totals[name]}" for name in given)))
    rows.append(("answers changed", "", *(f"{changed[name]}" for name in given)))
    report.tables = [Table("right answers by KV", ("task", "questions", *given), rows)]
    for name in (KVFormat.INT8.value, KVFormat.FP8.value):
        fewer = 100 * (1 - totals[name] / max(1, totals[EXACT]))
        report.bars.append(Bar(f"{name}: fewer right answers", fewer, BOUND_PERCENT, "%"))
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    parser = bench_parser("sizing.kv_tasks", __doc__)
    parser.add_argument("--quick", action="store_true", help="two tasks, few questions; written only with --json")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--seed", type=int, default=0, help="seed of the words and codes (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/kv_tasks.json on a full run)")
    options = parser.parse_args(arguments)
    num_questions = 4 if options.quick else 40
    rng = random.Random(options.seed)
    tasks = [copying(num_questions, rng), retrieval(num_questions, rng)]
    if not options.quick:
        try:
            tasks += read_tasks(options.workloads, num_questions)
        except WorkloadMissingError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 2
    path = options.json or (None if options.quick else RESULTS_DIR / "kv_tasks.json")
    return report_of(tasks, options.seed).finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
