"""Runs lm_eval in a process of its own: ``python lm_eval_run.py ARGUMENTS_AS_JSON``. Prints what it found as a line of JSON.

By task its results, and of every sample the replies as they were read. Imports nothing of radixkv.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    asked: dict[str, Any] = json.loads(sys.argv[1])
    tasks = TaskManager(include_path=asked.pop("include_path"), include_defaults=False)
    found = lm_eval.simple_evaluate(**asked, task_manager=tasks, bootstrap_iters=0)
    assert found is not None
    samples = {
        task: [[sample["doc_id"], sample["resps"]] for sample in sorted(each, key=lambda sample: sample["doc_id"])]
        for task, each in found["samples"].items()
    }
    print(json.dumps({"results": found["results"], "samples": samples}, default=str))


if __name__ == "__main__":
    main()
