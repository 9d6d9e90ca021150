"""Clients that nobody here wrote, as they are fetched from PyPI and npm, against a live gateway and a live cache service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from byte_model import EOS, save_byte_model
from fetched import SCRIPTS, Client
from safetensors.torch import load_file, save_file

import radixkv
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.worker.run import Worker, WorkerConfig

ROOT = Path(__file__).resolve().parents[2]
NODE_HOLDER = ROOT / "radixkv/examples/node_holder"
MODEL = "bytes"
CLIENTS = (
    Client("openai 2", "openai_sdk.py", ("openai==2.54.0",), is_slow=False),
    Client("openai 3", "openai_sdk.py", ("openai==3.54.0",), is_slow=False),
    Client("anthropic", "anthropic_sdk.py", ("anthropic==2.12.0",), is_slow=False),
    Client("openai (npm)", "openai_node.mjs", ("openai@6.49.0",), is_slow=False),
    Client("@anthropic-ai/sdk (npm)", "anthropic_node.mjs", ("@anthropic-ai/sdk@1.13.0",), is_slow=False),
    Client(
        "grpc-js", str(NODE_HOLDER / "engine.mjs"), ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"), is_slow=False
    ),
    Client(
        "Vercel AI SDK",
        "vercel_ai.mjs",
        (
            "ai@6.0.326",
            "zod@4.6.7",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/openai-compatible@2.0.92",
            "@ai-sdk/anthropic@3.0.140",
        ),
    ),
    Client("litellm", "litellm_sdk.py", ("litellm==1.110.2",)),
    Client("instructor", "instructor_modes.py", ("instructor[anthropic]==1.17.0",)),
    Client("langchain", "langchain_chat.py", ("langchain-openai==1.7.4", "langchain-anthropic==1.7.10")),
    Client(
        "langchain (npm)",
        "langchain_node.mjs",
        (
            "langchain@1.5.14",
            "@langchain/core@1.4.0",
            "@langchain/openai@1.5.8",
            "@langchain/anthropic@1.5.11",
            "zod@4.6.7",
        ),
    ),
    Client("llama-index", "llama_index_llms.py", ("llama-index-llms-openai-like==0.8.1",)),
    Client("haystack", "haystack_generators.py", ("haystack-ai==3.4.1", "anthropic-haystack==8.0.1")),
    Client("dspy", "dspy_programs.py", ("dspy==3.4.1",)),
    Client("mastra", "mastra_agents.mjs", ("@mastra/core@1.71.0", "zod@4.6.7")),
    Client("openai-agents", "openai_agents.py", ("openai-agents==0.24.0",)),
    Client("pydantic-ai", "pydantic_ai_agent.py", ("pydantic-ai-slim[openai,anthropic]==2.68.0",)),
    Client("outlines", "outlines_backends.py", ("outlines[openai]==1.3.3",)),
    Client("llm", "llm_command.py", ("llm==0.36",)),
    Client("inspect-ai", "inspect_evaluation.py", ("inspect-ai==0.3.285", "openai==3.57.0", "anthropic==2.13.0")),
    Client(
        "Microsoft Agent Framework",
        "agent_framework_agents.py",
        ("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0"),
    ),
    Client("strands", "strands_agent.py", ("strands-agents[openai,anthropic]==1.62.0",)),
    Client("smg", "smg_router.py", ("smg==1.13.0",)),
)


class Live(NamedTuple):
    """Addresses of what runs."""

    gateway: str
    service: str


def terse_model(folder: Path) -> str:
    """The byte model, with room for long prompts, that soon ends its replies and puts little space into JSON."""
    save_byte_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32_768}))
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][:, 0] = 5.0  # about the same in every state, so that the head has a bias
    bias = weights["lm_head.weight"][:, 0]
    bias.zero_()
    bias[list(b" \t\r\n")] = -10.0
    bias[EOS] = 1.2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    model = terse_model(tmp_path_factory.mktemp("bytes"))
    worker_config = WorkerConfig(model=model, listen=None, num_blocks=4096, max_model_len=32_768)
    http = GatewayConfig(listen="127.0.0.1:0", model_name=MODEL, max_tokens=900, drain_s=1.0)
    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        Worker(worker_config) as worker,
        GatewayServer(worker.engine, http) as server,
    ):
        yield Live(server.address, service.addresses[0])


@pytest.mark.parametrize(
    "client",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.is_slow else []) for each in CLIENTS],
)
def test_the_client_works_unchanged(client: Client, live: Live, tmp_path: Path) -> None:
    base = f"http://{live.gateway}"
    client.run(
        tmp_path,
        {
            "BASE": base,
            "MODEL": MODEL,
            "SERVICE": live.service,
            "PROTOS": radixkv.proto_dir(),
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_KEY": "any",
            "ANTHROPIC_BASE_URL": base,
            "ANTHROPIC_API_KEY": "any",
            "NO_PROXY": "127.0.0.1",
        },
    )


def table() -> str:
    rows = ["| client | version | what is run |", "|---|---|---|"]
    for client in CLIENTS:
        packages = ", ".join(f"`{package}`" for package in client.packages)
        rows.append(f"| {client.name}{'' if client.is_slow else ' *'} | {packages} | {client.what} |")
    return "\n".join(rows)


def test_the_table_tells_of_these_clients() -> None:
    readme = (Path(__file__).parent / "README.md").read_text()
    assert table() in readme, f"tests/clients/README.md should hold:\n{table()}"
    assert {path.name for path in SCRIPTS.iterdir() if path.is_file()} == {
        client.script for client in CLIENTS if Path(client.script).parent != NODE_HOLDER
    }


def test_the_holder_in_javascript_is_run_with_the_packages_that_it_names() -> None:
    named = json.loads((NODE_HOLDER / "package.json").read_text())["dependencies"]
    [client] = [client for client in CLIENTS if client.name == "grpc-js"]
    assert set(client.packages) == {f"{package}@{version}" for package, version in named.items()}
