"""Answers of a holder's Steps, without a network."""

from __future__ import annotations

from radixkv.client.notices import NoticeBox
from radixkv.client.session import HolderSession
from radixkv.core.api import AcquireOp, PoolShape, ReleaseOp
from radixkv.core.tokens import pack_tokens
from radixkv.service.attach.session import AttachSession
from radixkv.service.config import ServiceConfig
from radixkv.service.pools.table import PoolTable
from radixkv.v1 import workers_pb2 as workers

PROMPT = pack_tokens(range(40))


def test_each_step_has_an_answer_of_its_own_which_cannot_be_cancelled() -> None:
    sent: list[bytes] = []
    session = HolderSession(PoolShape(num_blocks=8), 1, NoticeBox(None))
    answers: list[workers.AttachResponse] = []
    service = AttachSession(PoolTable(ServiceConfig(), lambda: 0.0), answers.append, print)

    def travel() -> None:
        while sent:
            service.receive(workers.AttachRequest.FromString(sent.pop(0)))
        while answers:
            session.receive(answers.pop(0).SerializeToString())

    session.open(sent.append)
    travel()
    futures = []
    for seq_id in range(4):
        futures.append(session.submit([AcquireOp(PROMPT, seq_id=seq_id), ReleaseOp(seq_id)]))
        if seq_id % 2:
            session.prepare()
            session.prepare()
    assert len(set(futures)) == 4
    assert not any(future.cancel() or future.done() for future in futures)
    travel()
    assert [future.result(0)[0].seq_id for future in futures] == [0, 1, 2, 3]  # type: ignore[union-attr]  # they were opened
