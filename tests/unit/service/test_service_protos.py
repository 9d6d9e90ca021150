"""The protos keep their style, and the generated code is theirs."""

from __future__ import annotations

import importlib
import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]  # it ships no types

import radixkv
from radixkv.wire.features import FEATURES

ROOT = Path(__file__).parents[3]
PROTOS = sorted((ROOT / "protos/radixkv/v1").glob("*.proto"))
ELEMENT = re.compile(
    r"^\s*(message|enum|service|rpc|oneof|optional|repeated|\.?[\w.]+\s+\w+\s*=\s*\d+|[A-Z_0-9]+\s*=\s*\d+)"
)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "protos/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    generator.generate(folder)
    return Path(folder / "radixkv/v1")


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_the_checked_in_code_describes_the_proto(proto: Path, tmp_path: Path) -> None:
    described = tmp_path / "described"
    assert not protoc.main(["protoc", f"-I{ROOT / 'protos'}", f"--descriptor_set_out={described}", str(proto)])
    [fresh] = FileDescriptorSet.FromString(described.read_bytes()).file
    checked_in = FileDescriptorProto()
    importlib.import_module(f"radixkv.v1.{proto.stem}_pb2").DESCRIPTOR.CopyToProto(checked_in)
    for message in fresh.message_type:
        _drop_json_names(message)
    assert checked_in == fresh, "run protos/generate.py"


def _drop_json_names(message: DescriptorProto) -> None:
    """The compiler writes them into one form of a description and not into the other."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _drop_json_names(nested)


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_the_checked_in_code_is_what_this_compiler_writes(proto: Path, generated: Path) -> None:
    checked_in = ROOT / "radixkv/v1"
    stamp = re.search(r"GRPC_GENERATED_VERSION = '(.*)'", (checked_in / f"{proto.stem}_pb2_grpc.py").read_text())
    assert stamp is not None
    if stamp[1] != version("grpcio-tools"):
        pytest.skip(f"checked in by grpcio-tools {stamp[1]}; this one writes the same meaning in other words")
    for name in (f"{proto.stem}_pb2.py", f"{proto.stem}_pb2.pyi", f"{proto.stem}_pb2_grpc.py"):
        assert (generated / name).read_text() == (checked_in / name).read_text(), f"run protos/generate.py for {name}"


def test_the_package_carries_every_proto() -> None:
    shipped = Path(radixkv.proto_dir()) / "radixkv/v1"
    assert {path.name: path.read_text() for path in shipped.glob("*.proto")} == {
        path.name: path.read_text() for path in PROTOS
    }
    assert '"radixkv.v1" = ["*.proto"]' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_every_proto_names_its_package_in_other_languages(proto: Path) -> None:
    options = importlib.import_module(f"radixkv.v1.{proto.stem}_pb2").DESCRIPTOR.GetOptions()
    assert (options.go_package, options.java_package) == ("radixkv/v1;radixkvv1", "radixkv.v1")
    assert (options.csharp_namespace, options.java_multiple_files) == ("Radixkv.V1", True)


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_every_element_of_a_proto_is_commented(proto: Path) -> None:
    lines = proto.read_text().splitlines()
    bare = [
        f"{number + 1}: {line.strip()}"
        for number, line in enumerate(lines)
        if ELEMENT.match(line) and not lines[number - 1].lstrip().startswith("//")
    ]
    assert not bare


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_requests_and_responses_belong_to_one_call_and_enums_start_unspecified(proto: Path) -> None:
    descriptor = importlib.import_module(f"radixkv.v1.{proto.stem}_pb2").DESCRIPTOR
    for service in descriptor.services_by_name.values():
        for call in service.methods:
            assert call.input_type.name == f"{call.name}Request"
            assert call.output_type.name == f"{call.name}Response"
    for enum in descriptor.enum_types_by_name.values():
        assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")


def test_every_feature_is_documented_where_it_is_named() -> None:
    text = (ROOT / "protos/radixkv/v1/workers.proto").read_text()
    assert [name for name in FEATURES if text.count(f'//   "{name}"') + text.count(f', "{name}"  ') != 1] == []
