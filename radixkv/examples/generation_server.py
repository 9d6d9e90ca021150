"""An engine with the five calls of `Generation` that the gateway needs. Its model is a toy: it repeats the user's last turn.

    python -m radixkv.examples.generation_server 127.0.0.1:50060
    radixkv gateway --worker 127.0.0.1:50060

Tokens are the bytes of UTF-8, and marks. There is no K and V to copy or write. All runs on one event loop, the cache's thread.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
from collections.abc import AsyncIterator
from typing import Any

import grpc

from radixkv import InvalidArgumentError, pack_tokens, unpack_tokens
from radixkv.examples.block_manager import BlockManager, Sequence
from radixkv.v1 import generation_pb2 as pb
from radixkv.v1.generation_pb2_grpc import GenerationServicer, add_GenerationServicer_to_server
from radixkv.wire.errors import abort

END, MARKS = 256, {role: 257 + index for index, role in enumerate(("system", "user", "assistant", "tool"))}
SPELLINGS = [*(bytes([token]) for token in range(END)), b"<end>", *(f"<{role}>".encode() for role in MARKS)]
NUM_BLOCKS, BLOCK_SIZE, MAX_LENGTH, TOKEN_S = 4096, 16, 16_384, 0.005
DECODER = codecs.getincrementaldecoder("utf-8")
DRAWS = {"temperature", "top_k", "top_p", "min_p", "seed"}  # of one certain token: they change nothing


def read(prompt: pb.Prompt, history: bytes) -> list[int]:
    """The token ids of a prompt. A history keeps its own, and the template's text after an assistant's turn follows."""
    tokens, chat = unpack_tokens(history + prompt.token_ids), prompt.messages
    if prompt.WhichOneof("form") != "messages":
        return tokens + list(prompt.text.encode())
    if tokens and chat.continue_final_message and len(chat.messages) == 1:
        return tokens + list(chat.messages[0].content.encode())  # the history's reply goes on
    tokens += [END] if tokens and tokens[-1] != END else []  # its reply was cut by its length
    for turn in chat.messages:
        tokens += [MARKS[turn.role], *turn.content.encode(), END]
    return tokens[:-1] if chat.continue_final_message else [*tokens, MARKS["assistant"]]


def forward(tokens: list[int]) -> int:
    """The model: the next token of the last user turn, then the end of the reply. Outside of a chat, the first token."""
    begun = max((index for index, token in enumerate(tokens) if token == MARKS["assistant"]), default=0)
    if MARKS["user"] not in tokens[:begun]:
        return tokens[0]
    start = max(index for index in range(begun) if tokens[index] == MARKS["user"]) + 1
    return tokens[min(start + len(tokens) - begun - 1, tokens.index(END, start))]


class EchoEngine(GenerationServicer):
    def __init__(self) -> None:
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE, copy=lambda *_: None)

    async def GetModel(self, _request: Any, _context: Any) -> pb.GetModelResponse:  # noqa: N802  # the wire's name
        model = pb.GetModelResponse(name="echo", eos_token_ids=pack_tokens([END]), has_chat_template=True)
        model.max_length, model.vocab_size, model.block_size = MAX_LENGTH, len(SPELLINGS), BLOCK_SIZE
        return model

    async def Tokenize(self, request: Any, _context: Any) -> pb.TokenizeResponse:  # noqa: N802
        return pb.TokenizeResponse(token_ids=pack_tokens(read(request.prompt, request.history)))

    async def Detokenize(self, request: Any, _context: Any) -> pb.DetokenizeResponse:  # noqa: N802
        text = bytes(token for token in unpack_tokens(request.token_ids) if token < END)
        return pb.DetokenizeResponse(text=text.decode(errors="replace"))

    async def SpellTokens(self, request: Any, _context: Any) -> pb.SpellTokensResponse:  # noqa: N802
        return pb.SpellTokensResponse(spellings=[SPELLINGS[token] for token in unpack_tokens(request.token_ids)])

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        sampling, prompt = request.sampling, read(request.prompt, request.history)
        unknown = {field.name for field, _ in sampling.ListFields()} - {"max_tokens", "n", "early_stopping"} - DRAWS
        if unknown or not 0 < len(prompt) < MAX_LENGTH:
            bound = f"of 1 to {MAX_LENGTH - 1} tokens, drawn without {unknown or 'more'}"
            await abort(context, InvalidArgumentError("prompt", f"{len(prompt)} tokens", bound))
        end = min(len(prompt) + (sampling.max_tokens if sampling.HasField("max_tokens") else 256), MAX_LENGTH)
        usage = pb.Usage(num_prompt_tokens=len(prompt))
        yield pb.GenerateResponse(started=pb.Started(generation_id=f"{id(request):x}", prompt=pack_tokens(prompt)))
        for branch in range(max(sampling.n, 1)):  # one after the other: all but the first find the prompt cached
            seq, decoder, drawn = Sequence(list(prompt), request.namespace or "default"), DECODER("replace"), None
            while not self.manager.allocate(seq, reserve=end - len(prompt)):
                await asyncio.sleep(TOKEN_S)  # until others have ended
            cached: int | None = seq.num_cached_tokens
            usage.num_cached_tokens = usage.num_cached_tokens if branch else seq.num_cached_tokens
            try:
                self.manager.computed(seq)  # a model runs the positions from `num_cached_tokens` on before this
                while len(seq.token_ids) < end and drawn != END:
                    drawn = forward(seq.token_ids)
                    seq.token_ids.append(drawn)
                    delta = pb.Delta(branch=branch, token_ids=pack_tokens([drawn]), num_cached_tokens=cached)
                    delta.text = decoder.decode(bytes([drawn][: drawn < END]))
                    yield pb.GenerateResponse(delta=delta)
                    cached = None  # sent with the first tokens alone
                    self.manager.append(seq)  # its room is reserved
                    self.manager.computed(seq)
                    await asyncio.sleep(TOKEN_S)
            finally:  # also where the call is cancelled
                self.manager.free(seq)
            usage.num_generated_tokens += len(seq.token_ids) - len(prompt)
            reason, stop = (pb.FINISH_REASON_STOP, END) if drawn == END else (pb.FINISH_REASON_LENGTH, None)
            finished = pb.BranchFinished(branch=branch, reason=reason, stop_token_id=stop)
            yield pb.GenerateResponse(branch_finished=finished)
        yield pb.GenerateResponse(completed=pb.Completed(usage=usage))


async def serve(address: str) -> None:
    server = grpc.aio.server()
    add_GenerationServicer_to_server(EchoEngine(), server)  # type: ignore[no-untyped-call]  # generated
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An engine that echoes, for radixkv gateway --worker ADDRESS.")
    parser.add_argument("address", help="to listen at, such as 127.0.0.1:50060")
    asyncio.run(serve(parser.parse_args().address))
