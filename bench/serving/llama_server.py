"""llama.cpp's server, alone in a process: ``python -P llama_server.py PACKAGE_FOLDER SETTINGS_AS_JSON``.

Settings are attributes of its parameters by their dotted name. Prints its address once it listens, and ends with its standard
input. Imports nothing of radixkv.
"""

from __future__ import annotations

import json
import sys
from operator import attrgetter


def main() -> None:
    folder, settings = sys.argv[1], json.loads(sys.argv[2])
    if folder:
        sys.path.insert(0, folder)
    import xllamacpp

    params = xllamacpp.CommonParams()
    for name, value in settings.items():
        holder, _, attribute = name.rpartition(".")
        setattr(attrgetter(holder)(params) if holder else params, attribute, value)
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
