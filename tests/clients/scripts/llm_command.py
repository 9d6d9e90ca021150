"""The command `llm`: a prompt, and `-c` to go on."""

import os
import pathlib
import subprocess
import sys

folder = pathlib.Path("llm")
folder.mkdir(exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: served\n  model_name: {os.environ['MODEL']}\n  api_base: {os.environ['OPENAI_BASE_URL']}\n"
)
command = [str(pathlib.Path(sys.executable).parent / "llm"), "-m", "served", "-o", "max_tokens", "8"]
for prompt in (["hello"], ["-c", "go on"], ["--no-stream", "bye"]):
    environment = os.environ | {"LLM_USER_PATH": str(folder)}
    subprocess.run([*command, *prompt], env=environment, check=True, stdin=subprocess.DEVNULL)
