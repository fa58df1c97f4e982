"""An OpenAI server that names its port: ``python -m tests.runtime.answering_server PORT [SECONDS]``.

It answers one request after the other, each in so many seconds, and counts how many were open at once.
"""

from __future__ import annotations

import asyncio
import sys

from aiohttp import web


def make_app(port: int, seconds: float) -> web.Application:
    """Return the application."""
    one_at_a_time = asyncio.Lock()
    requests = {"open": 0, "most": 0}

    async def answer(_: web.Request) -> web.Response:
        requests["open"] += 1
        requests["most"] = max(requests.values())
        async with one_at_a_time:
            await asyncio.sleep(seconds)
        requests["open"] -= 1
        return web.json_response({}, headers={"x-instance": str(port)})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"most": requests["most"]})

    app = web.Application()
    app.add_routes([web.post("/v1/{path:.*}", answer), web.get("/health", health)])
    return app


if __name__ == "__main__":
    chosen = int(sys.argv[1])
    app = make_app(chosen, float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    web.run_app(app, host="127.0.0.1", port=chosen, print=None, access_log=None)
