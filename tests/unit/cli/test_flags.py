"""Flags: each sets what it names and nothing else, and without any a command begins with its own defaults."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from radixkv.cli.commands import chat, gateway, serve, worker
from radixkv.cli.commands.chat import _chat_options
from radixkv.cli.commands.gateway import _state_file, gateway_config
from radixkv.cli.commands.serve import _service_config
from radixkv.cli.flags import describe_metrics
from radixkv.cli.kv_event_flags import describe_kv_events
from radixkv.cli.model_flags import worker_config
from radixkv.cli.program import _parse, main
from radixkv.cli.security_flags import TOKEN_FILE_VARIABLE, client_credentials, security_of
from radixkv.cli.store_flags import store_settings
from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.config import GatewayConfig
from radixkv.generation.params import SamplingDefaults, SamplingParams
from radixkv.net.channel import Credentials
from radixkv.net.tenants import TenantLimits
from radixkv.net.tls import ServerTls
from radixkv.service import Quota, ServiceConfig
from radixkv.stores.settings import StoreSettings
from radixkv.worker.run import WorkerConfig

Flags = tuple[str, ...]


def _gateway(options: argparse.Namespace) -> GatewayConfig:
    return gateway_config(options, _state_file(options.state or "none")[0], next(iter(options.service), None), None)


def _worker(options: argparse.Namespace) -> WorkerConfig:
    return worker_config(options, options.service, options.listen, options.drain)


def _chat(options: argparse.Namespace) -> Any:
    return _chat_options(options, SamplingDefaults(temperature=0.3))


READERS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "serve": _service_config,
    "gateway": _gateway,
    "worker": _worker,
    "chat": _chat,
}


def settings(value: Any, name: str = "") -> dict[str, Any]:
    """Every setting below, by its path."""
    if is_dataclass(value) and not isinstance(value, (Quota, ServerTls, StoreSettings)):
        return {
            path: below
            for one in fields(value)
            if one.name != "on_stage"
            for path, below in settings(getattr(value, one.name), f"{name}.{one.name}").items()
        }
    return {name[1:]: value}


def changed(command: str, flags: Flags) -> dict[str, Any]:
    """What the flags set, beyond what the command begins with."""
    plain, told = (settings(READERS[command](_parse([command, *given]))) for given in ((), flags))
    return {name: value for name, value in told.items() if value != plain[name]}


TLS = ("--tls-cert", "c.pem", "--tls-key", "k.pem")
SERVER_TLS = ServerTls(certificate_file=Path("c.pem"), key_file=Path("k.pem"))
ACCESS: list[tuple[Flags, dict[str, Any]]] = [
    (("--keys", "k.toml"), {"keys_file": Path("k.toml")}),
    (("--allow-anonymous",), {"allow_anonymous": True}),
    (("--allow-plaintext",), {"allow_plaintext": True}),
    (TLS, {"tls": SERVER_TLS}),
]
FLAGS: list[tuple[str, Flags, dict[str, Any]]] = [
    *(("serve", flags, {f"security.{name}": value for name, value in told.items()}) for flags, told in ACCESS),
    (
        "serve",
        (*TLS, "--tls-client-ca", "a.pem"),
        {"security.tls": replace(SERVER_TLS, client_ca_file=Path("a.pem"))},
    ),
    ("serve", ("--listen", "unix:/a", "--listen", "h:1"), {"addresses": ("unix:/a", "h:1")}),
    ("serve", ("--lease-ttl", "3.5"), {"lease_ttl_s": 3.5}),
    ("serve", ("--max-message-mib", "1.5"), {"max_message_bytes": 3 * 2**19}),
    ("serve", ("--drain", "0.5"), {"drain_s": 0.5}),
    ("serve", ("--metrics", "h:9"), {"metrics_address": "h:9"}),
    ("serve", ("--eviction", "lru"), {"eviction": "lru"}),
    ("serve", ("--pin-budget", "7"), {"pin_budget": 7.0}),
    (
        "serve",
        ("--quota", "a=20", "--quota", "b=25%:8", "--quota", "c=:3"),
        {"quotas": (Quota("a", 20), Quota("b", percent=25.0, sequences=8), Quota("c", sequences=3))},
    ),
    ("serve", ("--kv-events-endpoint",), {"kv_events_endpoint": "tcp://127.0.0.1:5557"}),
    (
        "serve",
        ("--kv-events-endpoint", "tcp://h:1", "--kv-events-replay-endpoint"),
        {"kv_events_endpoint": "tcp://h:1", "kv_events_replay_endpoint": "tcp://127.0.0.1:5558"},
    ),
    ("serve", ("--kv-events-topic", "t"), {"kv_events_topic": "t"}),
    ("serve", ("--kv-events-pool", "p"), {"kv_events_pool": "p"}),
    ("serve", ("--kv-events-arrays",), {"kv_events_arrays": True}),
    *(("gateway", flags, told) for flags, told in ACCESS),
    ("gateway", ("--listen", "h:1"), {"listen": "h:1"}),
    ("gateway", ("--service", "h:2"), {"service": "h:2"}),
    ("gateway", ("--pool", "p"), {"pool_name": "p"}),
    ("gateway", ("--worker-wait", "4"), {"worker_wait_s": 4.0}),
    ("gateway", ("--allow-host", "a", "--allow-host", "b"), {"allow_hosts": ("a", "b")}),
    ("gateway", ("--model-name", "m"), {"model_name": "m"}),
    ("gateway", ("--state", "s.sqlite"), {"state_file": Path("s.sqlite")}),
    ("gateway", ("--state", "postgresql://a@db/radixkv"), {"state_file": "postgresql://a@db/radixkv"}),
    ("gateway", ("--shared", "redis://cache:6379"), {"shared_url": "redis://cache:6379"}),
    ("gateway", ("--cors", "http://a", "--cors", "*"), {"cors_origins": ("http://a", "*")}),
    ("gateway", ("--requests-per-minute", "3"), {"limits.requests_per_minute": 3}),
    ("gateway", ("--tokens-per-minute", "4"), {"limits.tokens_per_minute": 4}),
    ("gateway", ("--max-concurrent", "5"), {"limits.max_concurrent": 5}),
    ("gateway", ("--max-body-mib", "0.5"), {"max_body_bytes": 2**19}),
    ("gateway", ("--system", "be brief"), {"system_prompt": "be brief"}),
    ("gateway", ("--reply-tokens", "9"), {"max_tokens": 9}),
    ("gateway", ("--drain", "0.5"), {"drain_s": 0.5}),
    ("gateway", ("--log-requests",), {"log_requests": True}),
    ("worker", ("--service", "h:1"), {"service": "h:1"}),
    ("worker", ("--listen", "h:2"), {"listen": "h:2"}),
    ("worker", ("--drain", "0.5"), {"drain_s": 0.5}),
    ("worker", ("--model", "m"), {"model": "m"}),
    (
        "worker",
        ("--adapter", "a=/x", "--adapter", "b=/y=z"),
        {"adapters": {"a": Path("/x"), "b": Path("/y=z")}},
    ),
    ("worker", ("--dtype", "float16"), {"dtype": "float16"}),
    ("worker", ("--device", "cpu"), {"device": "cpu"}),
    ("worker", ("--quantization", "int8"), {"quantization": "int8"}),
    ("worker", ("--deterministic",), {"deterministic": True}),
    ("worker", ("--no-cuda-graphs",), {"cuda_graphs": False}),
    ("worker", ("--tensor-parallel", "2"), {"tensor_parallel": 2}),
    ("worker", ("--max-model-len", "99"), {"max_model_len": 99}),
    ("worker", ("--temperature", "0.5"), {"sampling": SamplingDefaults(temperature=0.5)}),
    ("worker", ("--top-p", "0.5"), {"sampling": SamplingDefaults(top_p=0.5)}),
    ("worker", ("--num-blocks", "77"), {"num_blocks": 77}),
    ("worker", ("--num-blocks", "1"), {"num_blocks": 1}),
    ("worker", ("--num-blocks", "auto"), {}),
    ("worker", ("--block-size", "32"), {"block_size": 32}),
    ("worker", ("--kv-dtype", "int8"), {"kv_dtype": "int8"}),
    ("worker", ("--layout", "arena"), {"layout": "arena"}),
    ("worker", ("--kv-memory", "2GiB"), {"kv_bytes": 2**31}),
    ("worker", ("--window-share", "0.5"), {"window_share": 0.5}),
    ("worker", ("--host-cache", "1GiB"), {"host_bytes": 2**30, "store": StoreSettings()}),
    ("worker", ("--host-cache", "0"), {"host_bytes": 0}),
    ("worker", ("--utilisation", "0.5"), {"utilisation": 0.5}),
    ("worker", ("--pool", "p"), {"pool_name": "p"}),
    ("worker", ("--max-num-seqs", "1"), {"limits.max_running": 1}),
    ("worker", ("--max-batch-tokens", "999"), {"limits.max_batch_tokens": 999}),
    ("worker", ("--max-wait", "0"), {"limits.max_wait_s": 0.0}),
    ("worker", ("--preemption", "swap"), {"limits.preemption": "swap"}),
    ("worker", ("--admission", "worst-case"), {"limits.admission": "worst-case"}),
    ("worker", ("--prices", "p"), {"prices_file": Path("p")}),
    ("worker", ("--speculation", "off"), {"speculation": "off"}),
    ("worker", ("--draft-tokens", "4", "--draft-memory", "1MiB"), {"draft_tokens": 4, "draft_bytes": 1 << 20}),
    ("worker", ("--no-prefix-sharing",), {"share_prefixes": False}),
    ("worker", ("--disk-cache", "/d:1GiB"), {"store": StoreSettings((Path("/d"), 1 << 30))}),
    (
        "worker",
        ("--disk-cache", "/d:1GiB", "--disk-kv-dtype", "int8"),
        {"store": StoreSettings((Path("/d"), 1 << 30), kv_dtype="int8")},
    ),
    (
        "worker",
        ("--remote", "redis://h", "--store-key", "k", "--save-rate", "1MiB"),
        {"store": StoreSettings(None, "redis://h", Path("k"), 1 << 20)},
    ),
    (
        "worker",
        ("--no-prefix-sharing-for", "a", "--no-prefix-sharing-for", "b"),
        {"unshared_namespaces": frozenset("ab")},
    ),
    ("worker", ("--disk-cache", "/x:2GiB"), {"store": StoreSettings((Path("/x"), 2**31))}),
    ("worker", ("--remote", "redis://h:1"), {"store": StoreSettings(remote="redis://h:1")}),
    (
        "worker",
        ("--remote", "redis://h:1", "--store-key", "k", "--save-rate", "1MiB"),
        {"store": StoreSettings(None, "redis://h:1", Path("k"), 2**20)},
    ),
    ("chat", ("--max-tokens", "9"), {"sampling.max_tokens": 9}),
    ("chat", ("--seed", "9"), {"sampling.seed": 9}),
    ("chat", ("--temperature", "0.5"), {"sampling.temperature": 0.5}),
    ("chat", ("--top-p", "0.5"), {"sampling.top_p": 0.5}),
    ("chat", ("--system", "be brief"), {"system_prompt": "be brief"}),
]


@pytest.mark.parametrize(("command", "flags", "told"), FLAGS, ids=lambda value: "".join(value)[:40])
def test_a_flag_sets_what_it_names_and_nothing_else(command: str, flags: Flags, told: dict[str, Any]) -> None:
    assert changed(command, flags) == told


def test_every_flag_of_a_setting_is_in_the_table_above() -> None:
    elsewhere = {
        "--help",
        "--http",
        "--metrics",
        "--worker",
        "--gateway",
        "--advertise",
    }  # no settings, but where something else is
    elsewhere |= {"--token-file", "--tls-ca", "--tls-client-cert", "--tls-client-key"}  # see the tests of credentials
    listed = {flag for _, flags, _ in FLAGS for flag in flags if flag.startswith("--")}
    commands = argparse.ArgumentParser().add_subparsers()
    for module in (serve, gateway, worker, chat):
        module.add(commands)
    for command in commands.choices.values():
        flags = {flag for flag in command._option_string_actions if flag.startswith("--")}
        assert flags - listed <= elsewhere


def test_a_command_without_flags_begins_with_the_defaults_of_what_it_starts() -> None:
    plain = {command: read(_parse([command])) for command, read in READERS.items()}
    assert plain["serve"] == ServiceConfig(addresses=("127.0.0.1:50051",))
    assert plain["gateway"] == GatewayConfig(listen="127.0.0.1:8000")
    own = WorkerConfig(model="default", service="127.0.0.1:50051", listen="127.0.0.1:50052")
    assert settings(plain["worker"]) == settings(own)
    assert plain["chat"].sampling == SamplingParams(temperature=0.3, max_tokens=512)
    assert plain["chat"].system_prompt is None


@pytest.mark.parametrize(
    ("flags", "has_store"),
    [
        ((), True),
        (("--window-share", "1"), True),
        (("--window-share", "0.5"), False),
        (("--window-share", "0.5", "--disk-cache", "1GiB"), True),  # which the worker then rejects, as the next
        (("--window-share", "0.5", "--store-key", "k"), True),
    ],
)
def test_a_store_that_nobody_asked_for_gives_way_to_a_share_of_windows(flags: Flags, has_store: bool) -> None:
    assert (store_settings(_parse(["up", *flags])) is not None) == has_store


REFUSED: list[tuple[str, Flags, str]] = [
    ("worker", ("--max-num-seqs", "0"), "--max-num-seqs is 0; it must be at least 1"),
    ("worker", ("--draft-tokens", "0"), "--draft-tokens is 0; it must be between 1 and 64"),
    ("worker", ("--max-batch-tokens", "0"), "--max-batch-tokens is 0"),
    (
        "worker",
        ("--admission", "worst-case", "--preemption", "swap"),
        "--preemption is 'swap'; it must be recompute with",
    ),
    ("worker", ("--no-prefix-sharing-for", "a#salt=b"), "--no-prefix-sharing-for is 'a#salt=b'; it must be the owner"),
    ("worker", ("--max-wait", "-0.1"), "--max-wait is -0.1"),
    ("worker", ("--max-wait", "inf"), "--max-wait is inf"),
    ("worker", ("--max-wait", "nan"), "--max-wait is nan"),
    ("worker", ("--temperature", "-1"), "temperature is -1.0"),
    ("worker", ("--top-p", "0"), "top_p is 0.0"),
    ("worker", ("--kv-memory", "much"), "--kv-memory"),
    ("worker", ("--host-cache", "much"), "--host-cache is 'much'; it must be a size"),
    ("worker", ("--host-cache", "0", "--store-key", "k"), "--store-key is 'k'; it must be given with --disk-cache"),
    ("worker", ("--adapter", "a=/x", "--adapter", "a=/y"), "--adapter"),
    ("worker", ("--disk-cache", "/d"), "--disk-cache"),
    ("worker", ("--host-cache", "1GiB", "--disk-kv-dtype", "int8"), "it must be given with --disk-cache or --remote"),
    (
        "worker",
        ("--disk-cache", "/d:1GiB", "--disk-kv-dtype", "int4", "--deterministic"),
        "--disk-kv-dtype is 'int4'; it must be auto with --deterministic",
    ),
    ("worker", ("--disk-cache", "/x:0"), "--disk-cache"),
    (
        "worker",
        ("--store-key", "k"),
        "--store-key is 'k'; it must be given with --disk-cache, --host-cache or --remote",
    ),
    ("worker", ("--remote", "redis://h:1", "--save-rate", "0"), "--save-rate"),
    ("serve", ("--tls-cert", "c.pem"), "--tls-cert is 'c.pem'; it must be given along with --tls-key"),
    ("serve", ("--tls-key", "k.pem"), "--tls-cert is None"),
    ("serve", ("--tls-client-ca", "a.pem"), "--tls-client-ca is 'a.pem'; it must be given along with --tls-cert"),
]


@pytest.mark.parametrize(("command", "flags", "complaint"), REFUSED, ids=lambda value: "".join(value)[:40])
def test_a_value_past_its_bound_is_refused_by_its_flag(command: str, flags: Flags, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        READERS[command](_parse([command, *flags]))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", ""])
def test_a_number_of_blocks_is_a_number_or_auto(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(["worker", "--num-blocks", value])
    assert "neither auto nor a number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["a", "=x", "a=", "="])
def test_an_adapter_has_a_name_and_a_folder(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse(["worker", "--adapter", value])
    assert "not of the form NAME=FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "variable", "given"),
    [
        ((), None, None),
        ((), "", None),
        ((), "v.key", Credentials(token_file=Path("v.key"))),
        (("--token-file", "t.key"), "v.key", Credentials(token_file=Path("t.key"))),
        (("--tls-ca", "a.pem"), None, Credentials(ca_file=Path("a.pem"))),
        (
            ("--tls-client-cert", "c.pem", "--tls-client-key", "k.pem"),
            None,
            Credentials(certificate_file=Path("c.pem"), key_file=Path("k.pem")),
        ),
    ],
)
def test_credentials_come_from_flags_and_else_from_the_environment(
    flags: Flags, variable: str | None, given: Credentials | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_FILE_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(TOKEN_FILE_VARIABLE, variable)
    assert client_credentials(_parse(["stats", *flags])) == given


def test_a_workers_tenants_have_the_limits_of_its_flags_too() -> None:
    options = _parse(["worker", "--requests-per-minute", "3", "--tokens-per-minute", "4", "--max-concurrent", "5"])
    assert security_of(options).limits == TenantLimits(requests_per_minute=3, tokens_per_minute=4, max_concurrent=5)
    assert security_of(_parse(["serve"])).limits == TenantLimits()


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ((), ("", "")),
        (("--kv-events-endpoint", "tcp://h:1"), ("\n  KV events      tcp://h:1", "")),
        (
            ("--kv-events-endpoint", "tcp://h:1", "--kv-events-replay-endpoint", "tcp://h:2", "--metrics", "h:3"),
            ("\n  KV events      tcp://h:1, replayed on tcp://h:2", "\n  metrics        http://h:3/metrics"),
        ),
    ],
)
def test_what_is_served_besides_is_said(flags: Flags, lines: tuple[str, str]) -> None:
    options = _parse(["serve", *flags])
    assert (describe_kv_events(options), describe_metrics(options)) == lines


def test_state_is_kept_in_the_users_folder_unless_another_gateway_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    monkeypatch.setenv("RADIXKV_STATE", str(folder))
    path = folder / "gateway.sqlite"
    assert _state_file(None) == (path, "")
    assert folder.stat().st_mode & 0o777 == 0o700
    with FileLock(f"{path}.lock"), FileLock(f"{folder}/gateway-2.sqlite.lock"):
        found, notice = _state_file(None)
    assert found is None
    assert notice.endswith(f"{path} is held by another gateway. To keep them: --state {folder}/gateway-3.sqlite")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RADIXKV_STATE", str(tmp_path / "file"))
    found, notice = _state_file(None)
    assert found is None
    assert "cannot be used, File exists. To keep them: --state FILE" in notice
    assert _state_file("none") == (None, "")
    with pytest.raises(InvalidArgumentError, match=r"--state is 'postgressql://…'"):
        _state_file("postgressql://user:secret@host/database")
    assert _state_file("own") == (Path("own"), "")


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("matplotlib", ("replay", "trace.jsonl", "--plot", "x.png"), "plot"),
        ("radixkv.cli.batch_run", ("batch", "a", "b"), None),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    module: str,
    command: Flags,
    extra: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.jsonl").write_text('{"prompt": "a"}\n' * 9)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]  # so that its import fails
    if extra is None:
        with pytest.raises(ModuleNotFoundError):
            main(command)
        return
    assert main(command) == 1
    assert (
        f"{module} is not installed, which this command needs: pip install 'radixkv[{extra}]'"
        in capsys.readouterr().err
    )
