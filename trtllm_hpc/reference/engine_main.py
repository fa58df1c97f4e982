"""The engine's process: ``python -m trtllm_hpc.reference.engine_main SOCKET OWNER``.

It ends with the process that started it, however that one ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import signal
import sys
from multiprocessing.connection import Connection

from trtllm_hpc.reference.engine_config import EngineFolder
from trtllm_hpc.reference.engine_process import Failed, Start
from trtllm_hpc.reference.shutdown import first_sentence

_PR_SET_PDEATHSIG = 1
"""``prctl``: the kernel sends a signal when the parent ends."""


def main() -> None:
    """Load the engine as the first message says, and serve until its owner says stop."""
    faulthandler.enable()
    # A signal to the whole job must not end the engine before the requests that it answers.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        # The owner ended before the signal was asked for.
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # What is imported stays; looking through it again and again for garbage takes a fifth of the start.
    gc.disable()
    connection = Connection(int(sys.argv[1]))
    start: Start = connection.recv()
    try:
        # Only now: it imports the libraries, which takes seconds, and one may be missing or broken.
        from trtllm_hpc.reference.engine_server import loader, serve

        load = loader(EngineFolder(start.folder))
    except Exception as error:
        # Whatever a library raises while it is imported, the owner passes it on, and ends its server.
        logging.exception("the engine's libraries cannot be imported")
        connection.send(Failed(f"The engine's libraries cannot be imported: {first_sentence(error)}"))
        os._exit(1)
    serve(connection, start, load)
    logging.shutdown()
    # Now and then a thread of gloo outlives its group, and the interpreter's end aborts (std::terminate).
    os._exit(0)


if __name__ == "__main__":
    main()
