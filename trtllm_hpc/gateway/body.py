"""Bodies of requests: bounded while they are read, whether their length is known or not."""

from __future__ import annotations

import zlib

from starlette.requests import Request

from trtllm_hpc.gateway.errors import ApiError

_GZIP = 16 + zlib.MAX_WBITS


async def read_body(request: Request, most_mib: int) -> bytes:
    """Return a request's body, unpacked if it is compressed with gzip.

    Raises ApiError if the unpacked body is larger than the bound, or is damaged.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip"):
        raise ApiError(f"Content-Encoding {coding!r} is not supported, only gzip.", 415)
    most, body, unpacker = most_mib << 20, bytearray(), zlib.decompressobj(_GZIP)
    async for piece in request.stream():
        try:
            body += unpacker.decompress(piece, most + 1 - len(body)) if coding == "gzip" else piece
        except zlib.error as error:
            raise ApiError(f"The body is not gzip: {error}.") from None
        if len(body) > most:
            raise ApiError(f"The body is larger than serve.max_request_mib, {most_mib} MiB.", 413)
    if coding == "gzip" and not unpacker.eof:
        raise ApiError("The body is not gzip: it has no end.")
    return bytes(body)
