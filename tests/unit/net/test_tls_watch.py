"""Replaced TLS files are to be read once, and files that make no sense are told once and change nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from certificates import Authority
from own_threads import own_records

from radixkv.net.tls import ServerTls, TlsWatch


def test_files_are_read_again_where_they_have_changed_and_make_sense_and_otherwise_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority.make(tmp_path)
    shown = authority.issue("first")
    watch = TlsWatch(ServerTls(certificate_file=shown.certificate, key_file=shown.key))
    assert not watch.has_changed()

    whole = shown.certificate.read_bytes()
    shown.certificate.write_bytes(b"none")
    with caplog.at_level(logging.ERROR):
        assert not watch.has_changed()
        assert not watch.has_changed()
    assert len(own_records(caplog)) == 1

    shown.certificate.write_bytes(whole)
    os.utime(shown.certificate, (1, 1))
    assert [watch.has_changed() for _ in range(3)] == [True, False, False]
