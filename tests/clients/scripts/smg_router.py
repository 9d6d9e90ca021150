"""A router before the gateway (HTTP mode): knows engine and model; chat (streamed), messages and responses through it."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

model, worker = os.environ["MODEL"], os.environ["BASE"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ask(path: str, body: dict | None = None) -> bytes:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}{path}", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


port, metrics = free_port(), free_port()
base = f"http://127.0.0.1:{port}"
command = [str(pathlib.Path(sys.executable).parent / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port)]
command += ["--prometheus-port", str(metrics), "--policy", "cache_aware", "--worker-urls", worker]
with subprocess.Popen(command) as router:
    try:
        workers = []
        for _ in range(600):
            with contextlib.suppress(OSError):
                workers = json.loads(ask("/workers"))["workers"]
            if workers and workers[0]["is_healthy"]:
                break
            assert router.poll() is None
            time.sleep(0.1)
        [known] = workers
        assert (known["model_id"], known["connection_mode"], known["is_healthy"]) == (model, "http", True), known
        assert known["runtime_type"] == "vllm", known  # whose words /version and /server_info are
        assert known["models"][0]["context_length"] == 32_768, known
        hello = [{"role": "user", "content": "A question that is long enough"}]
        chat = {"model": model, "messages": hello, "max_tokens": 8}
        first = json.loads(ask("/v1/chat/completions", chat))
        assert 0 < first["usage"]["completion_tokens"] <= 8
        streamed = ask("/v1/chat/completions", {**chat, "stream": True}).decode()
        assert streamed.count("data: ") > 1
        assert streamed.rstrip().endswith("data: [DONE]")
        message = json.loads(ask("/v1/messages", chat))
        assert message["role"] == "assistant"
        assert message["usage"]["cache_read_input_tokens"] > 0
        response = json.loads(ask("/v1/responses", {"model": model, "input": "hello", "max_output_tokens": 8}))
        assert response["object"] == "response"
        assert response["usage"]["output_tokens"] <= 8
    finally:
        router.terminate()
