"""A stand-in for a server with OpenAI's protocol and a block cache: prompts cost what is not in the cache.

``python -m benchmarks.prefix_server PORT [--blocks N] [--token-us US]``

A word is a token. Blocks of 32 tokens are known by the hash of all tokens up to their end, as vLLM and
TensorRT-LLM know theirs; the least recently used is dropped for a new one. Prompts are computed one after the
other, each in the time that its unknown tokens take. An answer names the tokens that were cached, as OpenAI's
protocol has it, and the port of the server in the header ``x-instance``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from aiohttp import web

BLOCK = 32
ANSWER = " ".join(f"answer{number}" for number in range(64))


class BlockCache:
    """Holds the hashes of ``size`` blocks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, tokens: Sequence[str]) -> int:
        """Take up a prompt's whole blocks; returns how many tokens of its beginning were there."""
        hits, hash_so_far, has_missed = 0, 0, False
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            hash_so_far = hash((hash_so_far, *tokens[start : start + BLOCK]))
            has_missed = has_missed or hash_so_far not in self._blocks
            hits += 0 if has_missed else BLOCK
            self._blocks[hash_so_far] = None
            self._blocks.move_to_end(hash_so_far)
        while len(self._blocks) > self._size:
            self._blocks.popitem(last=False)
        return hits


def make_app(port: int, blocks: int, token_us: float) -> web.Application:
    """Return the application."""
    cache, computing = BlockCache(blocks), asyncio.Lock()
    state = {"open": 0, "most": 0}

    async def generate(request: web.Request) -> web.Response:
        state["open"] += 1
        state["most"] = max(state.values())
        try:
            asked: dict[str, Any] = json.loads(await request.read())
            texts = [each["content"] for each in asked.get("messages", ())]
            parts = [text if isinstance(text, str) else text[0]["text"] for text in texts]
            tokens = " ".join((*parts, asked.get("prompt", ""))).split()
            async with computing:
                hits = cache.add(tokens)
                await asyncio.sleep((len(tokens) - hits) * token_us / 1e6)
        finally:
            state["open"] -= 1
        used = {"prompt_tokens": len(tokens), "prompt_tokens_details": {"cached_tokens": hits}}
        answer = {"choices": [{"message": {"role": "assistant", "content": ANSWER}}], "usage": used}
        return web.json_response(answer, headers={"x-instance": str(port)})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"most": state["most"]})

    app = web.Application(client_max_size=2**24)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(headers={"x-instance": str(port)})

    app.add_routes([web.post("/v1/{path:.*}", generate), web.get("/health", health)])
    app.add_routes([web.get("/prometheus/metrics", metrics)])
    return app


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_server", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--blocks", type=int, default=6000)
    parser.add_argument("--token-us", type=float, default=10.0)
    options = parser.parse_args()
    app = make_app(options.port, options.blocks, options.token_us)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
