"""The command line as a person meets it: at a terminal, and when something is wrong."""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import transformers as tf
from chat_stack import keys_file
from talk import Talk
from terminal import Terminal

from radixkv import PoolShape, connect
from radixkv.cli import main
from radixkv.cli.program import COMMANDS
from radixkv.service import Quota, ServiceConfig, ServiceThread

RADIXKV = str(Path(sys.executable).parent / "radixkv")
FREE_PORT = ("--listen", "127.0.0.1:0")  # any process of this machine may have the default one


@pytest.mark.usefixtures("default_model")
def test_up_at_a_terminal_chats_branches_stops_a_reply_and_leaves_cleanly() -> None:
    addresses = ["--listen", "127.0.0.1:0", "--service-listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    terminal = Terminal([RADIXKV, "up", *addresses, "--num-blocks", "256", "--temperature", "0", "--max-tokens", "400"])
    try:
        terminal.wait_for(r"generation\s+127\.0\.0\.1:\d+")
        page = terminal.wait_for(r"chat page\s+http://127\.0\.0\.1:\d+").split()[-1]
        terminal.wait_for("you>")
        with Talk(f"{page}/v1") as talk:
            talk.begin(title="Kept by the page")
        terminal.type("/resume\r")
        terminal.wait_for("#1  Kept by the page")
        terminal.wait_for("you>")
        terminal.type("What is the capital of France?\r")
        terminal.wait_for("The capital of France is Paris")
        terminal.wait_for(r"prompt 37 tokens: 0 reused, 37 computed")
        terminal.type("/regenerate 2\r")
        terminal.wait_for("2 drafts; each is shown when it is done")
        terminal.wait_for("bot [12]> The capital of France is Paris")
        terminal.wait_for("bot [12]> The capital of France is Paris")
        terminal.type("/edit 1\r")
        terminal.wait_for("edit 1>")
        terminal.type("\x7f in one word?\r")
        terminal.wait_for("30 reused, 10 computed")
        terminal.type("Tell me a very long story about a dragon.\r")
        terminal.wait_for(r"bot> \w+ \w+")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("stopped")
        terminal.type("/branches\r")
        terminal.wait_for(r"\*\s+4  2 turns")
        terminal.wait_for("you>")  # before its prompt stands, the terminal itself would take the key
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


@pytest.mark.thorough
@pytest.mark.usefixtures("default_model")
def test_the_terminal_of_up_with_keys_lists_what_its_key_may_see(tmp_path: Path) -> None:
    keys, token = keys_file(tmp_path / "keys.toml"), tmp_path / "red.token"
    token.write_text("red\n")
    addresses = ["--listen", "127.0.0.1:0", "--service-listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    terminal = Terminal(
        [RADIXKV, "up", *addresses, "--num-blocks", "64", "--keys", str(keys), "--token-file", str(token)]
    )
    try:
        page = terminal.wait_for(r"chat page\s+http://127\.0\.0\.1:\d+").split()[-1]
        terminal.wait_for("you>")
        for key in ("blue", "red"):
            with Talk(f"{page}/v1", key) as talk:
                talk.begin(title=f"Kept by {key}")
        terminal.type("/resume\r")
        assert "blue" not in terminal.wait_for("(?s).*?#1  Kept by red")
        terminal.wait_for("you>")
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


def test_a_reader_that_has_had_enough_ends_the_output_without_a_word() -> None:
    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        connect(service.addresses[0], PoolShape(8)),
    ):
        command = [RADIXKV, "stats", "--service", service.addresses[0]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.close()
        _, error = process.communicate(timeout=300)
    assert (process.returncode, error) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_an_output_without_room_is_one_line_with_status_1() -> None:
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [RADIXKV, "plan", "--list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert finished.returncode == 1
    assert finished.stderr == "radixkv: what is written finds no room: No space left on device\n"


def test_serve_stops_on_sigterm_with_status_0() -> None:
    server = subprocess.Popen([RADIXKV, "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert "radixkv cache service on 127.0.0.1:" in server.stdout.readline()
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=300) == 0
    server.stdout.close()


def test_a_port_in_use_is_one_line_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--listen", address]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"radixkv: {address} is in use")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", *FREE_PORT, "--model", "/nowhere"], "no model folder /nowhere"),
        (
            ["serve", *FREE_PORT, "--quota", "a=60%", "--quota", "b=50%"],
            "quotas is '110% of each pool in all'; it must be at most 100%",
        ),
        (
            ["serve", *FREE_PORT, "--quota", "a=1", "--quota", "a=2"],
            "quotas is 'a'; it must be a list that names each namespace once",
        ),
        (["quota", "--blocks", "5"], "NAMESPACE is None; it must be given along with --blocks"),
        (["quota", "tenant", "--remove", "--sequences", "5"], "--remove is True; it must be given without"),
        (["quota", "--service", "127.0.0.1:1"], "cannot be reached"),
        (["serve", "--listen", "nonsense"], "host:port"),
        (["serve", "--listen", "127.0.0.1:0", "--lease-ttl", "0"], "lease_ttl_s"),
        (["stats", "--service", "127.0.0.1:1"], "cannot be reached"),
        (["chat", "--worker", "127.0.0.1:1"], "cannot be reached"),
        (["top", "--worker", "127.0.0.1:1"], "cannot be reached"),
        (["explain", "1", "2", "--service", "127.0.0.1:1"], "cannot be reached"),
        (["explain", "--text", "hello", "--worker", "127.0.0.1:1"], "cannot be reached"),
        (["explain"], "PROMPT is ''; it must be token ids, a JSON file or -, or else --text TEXT"),
        (["explain", "1", "--text", "hello"], "or else --text TEXT"),
        (["explain", "1", "two"], "PROMPT is 'two'; it must be a token id"),
        (["explain", "/nowhere.json"], "a file that can be read: No such file"),
        (["explain", __file__], "it must be JSON: "),
        (["explain", str(2**32)], "integers in [0, 2**32)"),
        (["top", "--interval", "0"], "--interval is 0.0; it must be from 0.05"),
        (["plan", "no-such-model"], "no model 'no-such-model': give a folder, a config.json"),
        (["plan", "llama-3-8b", "--memory", "much"], "--memory is 'much'; it must be a size such as 512MiB"),
        (["plan", "llama-3-8b", "--memory", "16GiB"], "nothing is left for KV: give more memory"),
        (["plan", "llama-3-8b", "--memory", "80GiB", "--tp", "3"], "tp is 3; it must be a divisor of"),
        (["worker", *FREE_PORT, "--kv-memory", "lots"], "--kv-memory is 'lots'; it must be a size"),
        (["worker", *FREE_PORT, "--max-num-seqs", "0"], "--max-num-seqs is 0; it must be at least 1"),
        (["worker", *FREE_PORT, "--max-wait", "-1"], "--max-wait is -1.0; it must be at least 0"),
        (["worker", *FREE_PORT, "--utilisation", "1.5"], "utilisation is 1.5; it must be above 0 and at most 1"),
        (
            ["worker", *FREE_PORT, "--host-cache", "0", "--preemption", "swap"],
            "which is 0: raise it, or leave one of them out",
        ),
        (["worker", *FREE_PORT, "--num-blocks", "64", "--kv-memory", "1GiB"], "give one of them"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_status_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixkv.net.retry._LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr("radixkv.net.retry._FIRST_WAIT_S", 0.01)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("radixkv: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["chat"], ["top"], ["gateway", "--listen", "127.0.0.1:0"]], ids=lambda each: each[0]
)
def test_the_address_of_a_service_given_for_that_of_a_worker_is_told_as_such(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        assert main([*arguments, "--worker", service.addresses[0]]) == 1
    error = capsys.readouterr().err
    assert error.startswith("radixkv: the server is no worker"), error
    assert error.count("\n") == 1


def test_quotas_are_shown_set_one_at_a_time_and_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    def quota(*arguments: str) -> list[str]:
        assert main(["quota", "--service", address, *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    config = ServiceConfig(addresses=("127.0.0.1:0",), quotas=(Quota("gold", percent=25), Quota("trial", sequences=2)))
    with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(64)) as holder:
        address = service.addresses[0]
        for namespace in ("gold", "default"):
            holder.acquire([1] * 16 * 20 if namespace == "default" else [1] * 16 * 3, reserve=16, namespace=namespace)
        assert quota() == [
            "pool default: 64 blocks of 16 tokens, 41 free",
            "48 blocks are for the namespaces without a quota together",
            "namespace  blocks  in use  quota  borrowed  sequences",
            "default        20      21      -         -          1",
            "gold            3       4     16         0          1",
            "trial           0       0      -         -     0 of 2",
        ]
        assert quota("gold", "--sequences", "4")[-1].split() == ["gold", "3", "4", "16", "0", "1", "of", "4"]
        assert quota("gold", "--blocks", "10%")[-1].split() == ["gold", "3", "4", "6", "0", "1", "of", "4"]
        assert quota("gold", "--blocks", "none")[-1].split() == ["gold", "3", "4", "-", "-", "1", "of", "4"]
        assert quota("gold", "--remove")[-1].split() == ["gold", "3", "4", "-", "-", "1"]
        quota("gold", "--blocks", "2")
        told = json.loads(quota("gold", "--json")[0])
        assert (told["pool"], told["block_quota"], told["num_borrowed"]) == ("default", 2, 1)
        for arguments, message in (
            (["new", "--blocks", "63"], "blocks is 63; it must be an integer from 0 to 62"),
            (["new", "--blocks", "101%"], "--blocks is '101%'; it must be from 0% to 100%"),
            (["new", "--blocks", "some"], "it must be a number of blocks, a part of the pool such as 25%, or none"),
            (["new", "--sequences", "some"], "--sequences is 'some'; it must be a number or none"),
            (["--pool", "other"], "no pool 'other' is attached"),
        ):
            assert main(["quota", "--service", address, *arguments]) == 1
            assert message in capsys.readouterr().err
        assert [line.split()[0] for line in quota()[3:]] == ["default", "gold", "trial"]


def test_stats_quotas_and_checks_reach_all_pools_of_all_services(capsys: pytest.CaptureFixture[str]) -> None:
    config = ServiceConfig(addresses=("127.0.0.1:0",))
    with ServiceThread(config) as one, ServiceThread(config) as two, ExitStack() as stack:
        addresses = one.addresses[0], two.addresses[0]
        for address, pool, num_blocks in ((addresses[0], "a", 64), (addresses[0], "b", 40), (addresses[1], "a", 80)):
            stack.enter_context(connect(address, PoolShape(num_blocks, 16, pool)))
        both = [flag for address in addresses for flag in ("--service", address)]
        where = [f"a of {addresses[0]}", f"b of {addresses[0]}", f"a of {addresses[1]}"]

        assert main(["quota", "team", "--blocks", "25%", "--json", *both]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(each["pool"], each["block_quota"]) for each in told] == list(zip(where, [16, 10, 20], strict=True))

        assert main(["quota", "team", "--remove", "--pool", "a", *both]) == 0
        assert main(["quota", "team", "--json", *both]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert [each["block_quota"] for each in told] == [None, 10, None]

        assert main(["stats", *both]) == 0
        heads = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("service", "pool"))]
        assert heads == [f"service {addresses[0]}", "pool a", "pool b", f"service {addresses[1]}", "pool a"]

        assert main(["check", *both]) == 0
        assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
            f"pool {name}".split(":")[0] for name in where
        ]
        assert main(["check", "--deep", "--worker", "127.0.0.1:1", *both]) == 1
        assert "it must be one with --deep" in capsys.readouterr().err


def test_serve_keeps_the_quotas_it_was_given_and_warns_where_a_pool_is_too_small_for_them() -> None:
    quotas = ["--quota", "a=b=60:3", "--quota", "gold=50%", "--quota", "trial=:2"]
    command = [RADIXKV, "serve", "--listen", "127.0.0.1:0", *quotas]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    match = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())
    assert match is not None
    told = []
    for num_blocks in (128, 64):
        with connect(match[0], PoolShape(num_blocks)) as holder:
            told.append([(use.namespace, use.block_quota, use.sequence_quota) for use in holder.usage()])
    server.send_signal(signal.SIGTERM)
    _, error = server.communicate(timeout=300)
    assert told[0] == [("a=b", 60, 3), ("gold", 64, None), ("trial", None, 2)]
    assert told[1] == [("a=b", 41, 3), ("gold", 22, None), ("trial", None, 2)]
    assert error.startswith("pool 'default' has 64 blocks and the quotas of its namespaces are 92: each is cut")
    assert error.count("\n") == 1


@pytest.mark.parametrize("quota", ["tenant", "tenant=", "tenant=x", "tenant=5:x", "=5", "tenant=-1", "tenant=101%"])
def test_a_quota_that_cannot_be_read_is_a_usage_error(quota: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *FREE_PORT, "--quota", quota])
    assert ended.value.code == 2
    assert f"argument --quota: {quota!r}" in capsys.readouterr().err


def test_a_command_whose_packages_are_missing_names_them_and_how_to_install_them() -> None:
    program = "import sys; sys.modules['torch'] = None; from radixkv.cli import main; sys.exit(main(['worker']))"
    finished = subprocess.run([sys.executable, "-c", program], timeout=300, check=False, capture_output=True, text=True)
    assert finished.returncode == 1
    assert finished.stderr == (
        "radixkv: torch is not installed, which this command needs: pip install 'radixkv[worker]'\n"
    )


def test_stats_of_a_service_without_a_pool_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        assert main(["stats", "--service", service.addresses[0]]) == 0
    assert f"radixkv worker --service {service.addresses[0]}" in capsys.readouterr().out


def test_a_tree_is_drawn_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        address = service.addresses[0]
        with connect(address, PoolShape(64, 4)) as holder:
            assert main(["tree", "--service", address]) == 0
            assert capsys.readouterr().out.endswith("nothing is cached\n")
            for last in (5, 6):
                holder.acquire([1, 2, 3, 4, last, last, last, last], seq_id=last)
                holder.insert(last, 8)
            assert main(["tree", "--service", address]) == 0
            out = capsys.readouterr().out
            assert "pool default: 64 blocks of 4 tokens\n3 cached, 0 of them evictable, 0 pinned\n" in out
            assert "0 + 4 tokens, 1 block  in use, 2  [1 2 3 4]" in out
            assert main(["tree", "--service", address, "--json"]) == 0
            nodes = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            assert [node["token_ids"] for node in nodes] == [[1, 2, 3, 4], [5] * 4, [6] * 4]
            assert main(["tree", "--service", address, "--pool", "none"]) == 1
            assert main(["tree", "--service", address, "--depth", "0"]) == 1


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    commands = argparse.ArgumentParser().add_subparsers()
    for module in COMMANDS:
        module.add(commands)
    return dict(commands.choices)


def options_of(command: str) -> dict[str, tuple[Any, str]]:
    """The default of every option that has one, and its line of help."""
    parser = command_parsers()[command]
    found = {}
    for action in parser._actions:
        if action.option_strings and action.default not in (None, False, argparse.SUPPRESS, "", []):
            found[action.option_strings[-1]] = action.default, parser._get_formatter()._expand_help(action)
    return found


@pytest.mark.parametrize("command", sorted(command_parsers()))
def test_help_tells_the_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    told = re.sub(r"\s+", "", capsys.readouterr().out)
    for option, (default, line) in options_of(command).items():
        assert str(default) in line, option
        assert "default" in line or f"{default} (" in line, option
        assert re.sub(r"\s+", "", line) in told, option


@pytest.mark.parametrize("command", ["up", "serve", "worker", "stats", "top", "tree", "explain"])
def test_who_listens_or_calls_says_where_by_default(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "(default127.0.0.1:5005" in re.sub(r"\s+", "", capsys.readouterr().out)


def test_importing_radixkv_serving_a_cache_and_chatting_with_a_worker_need_no_torch() -> None:
    program = (
        "import sys, radixkv; assert 'grpc' not in sys.modules\n"
        "import radixkv.chat.terminal, radixkv.generation.client\n"
        "from radixkv.service import Quota, ServiceConfig, ServiceThread\n"
        "with ServiceThread(ServiceConfig(addresses=('127.0.0.1:0',))) as service:\n"
        "    with radixkv.connect(service.addresses[0], radixkv.PoolShape(16)) as holder:\n"
        "        assert holder.acquire([1, 2, 3]).num_cached_tokens == 0\n"
        "assert not {'torch', 'transformers', 'triton'} & set(sys.modules)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], timeout=300, check=False)
    assert finished.returncode == 0


def test_a_plan_is_printed_for_people_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "Llama-3-8B", "--memory", "24GiB"]) == 0
    table = capsys.readouterr().out
    for line in (
        r"parameters +8,030,261,248 \(8\.03B\)",
        r"KV per token +131,072 bytes \(128 KiB\) in bfloat16",
        r"KV of 4,096 tokens +512 MiB",
        r"sequences of 8,192 +5 at once",
    ):
        assert re.search(f"^{line}$", table, re.MULTILINE), table
    assert main(["plan", "Llama-3-8B", "--memory", "24GiB", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["num_parameters"], plan["kv_bytes_per_token"], plan["num_full_sequences"]) == (8030261248, 131072, 5)
    assert plan["num_blocks"] == plan["kv_bytes"] // plan["kv_bytes_per_block"]


def test_a_plan_says_where_this_worker_keeps_more_than_it_must(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    widths = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    tf.AXK1Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, **widths).save_pretrained(tmp_path)
    assert main(["plan", str(tmp_path)]) == 0
    assert "note: this version's worker keeps KV expanded to every head, 640 bytes a token" in capsys.readouterr().out
    assert main(["plan", str(tmp_path), "--kv-layout", "stored"]) == 0
    out = capsys.readouterr().out
    assert "640 bytes" in out
    assert "note" not in out


def test_latents_that_the_worker_keeps_as_such_need_no_note(capsys: pytest.CaptureFixture[str]) -> None:
    for layout in ("least", "stored"):
        assert main(["plan", "deepseek-v3", "--kv-layout", layout]) == 0
        out = capsys.readouterr().out
        assert "70,272 bytes" in out
        assert "note" not in out


def test_a_plan_for_rounded_latents_rounds_their_value_and_the_rest_of_their_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for layout in ("least", "stored"):
        assert main(["plan", "deepseek-v3", "--kv-dtype", "int8", "--kv-layout", layout]) == 0
        out = capsys.readouterr().out
        assert f"KV per token                 {61 * (512 + 2 + 64 + 2):,} bytes" in out
        assert "note" not in out


def test_the_models_that_can_be_planned_by_name_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert {"llama-3-70b", "deepseek-v3", "smollm2-135m"} < set(names)
    for name in names:
        assert main(["plan", name]) == 0


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--num-blocks", "0", "'0' is neither auto nor a number of at least 1"),
        ("--num-blocks", "many", "'many' is neither auto"),
        ("--block-size", "12", "choose from"),
        ("--preemption", "drop", "choose from"),
    ],
)
def test_a_flag_outside_its_bound_is_a_usage_error_that_says_what_may_be_given(
    flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["worker", *FREE_PORT, flag, value])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"argument {flag}: " in error
    assert message in error


def test_an_argument_that_there_is_not_names_the_command_whose_help_lists_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quota", "team-a", "--nope"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("usage: radixkv quota ")
    assert told.endswith("radixkv quota: error: --nope: no such argument; radixkv quota --help lists them\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("up --host 0.0.0.0", "use --http 0.0.0.0:PORT"),
        ("up --port 8000", "use --http 127.0.0.1:8000"),
        ("gateway --worker a:1 --port=8000", "use --listen 127.0.0.1:8000"),
        ("up Qwen/Qwen3-0.6B", "use --model Qwen/Qwen3-0.6B"),
        ("worker --tensor-parallel-size 2", "use --tensor-parallel 2"),
        ("up --gpu-memory-utilization=0.8", "use --utilisation 0.8"),
        ("up --api-key secret", "use --keys FILE"),
        ("up --temprature 3", "did you mean --temperature?"),
        ("serve --max-model-len 5", "radixkv serve --help lists them"),
    ],
)
def test_an_argument_of_another_program_is_answered_with_its_name_here(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f": no such argument; {told}")
