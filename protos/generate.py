"""Generate radixkv/v1/ from the protos: `python protos/generate.py [OUTPUT_FOLDER]`.

Run it after every change of a proto and check in the result; a test proves that it is fresh.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent
PROJECT_ROOT = PROTO_ROOT.parent


def generate(output_root: Path) -> None:
    """Write `radixkv/v1/*_pb2.py`, `.pyi` and `_pb2_grpc.py` of every proto below `output_root`.

    Raises:
        RuntimeError: the compiler rejected a proto; its message is on standard error.
    """
    import grpc_tools  # type: ignore[import-untyped]  # it ships no types
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(str(path.relative_to(PROTO_ROOT)) for path in PROTO_ROOT.glob("radixkv/v1/*.proto"))
    outputs = [f"--{kind}={output_root}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"-I{PROTO_ROOT}", f"-I{well_known}", *outputs, *sources]):
        raise RuntimeError("the protos do not compile; see the messages above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT_ROOT)
