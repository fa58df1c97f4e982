"""A runtime's zip with its code compiled, for tests that start it again and again."""

from __future__ import annotations

import py_compile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path


def with_compiled(zipapp: bytes) -> bytes:
    """The zip of a run folder, and in it beside each source what this Python makes of it.

    Python keeps nothing of what it compiles out of a zip: every start takes that time again.
    """
    buffer = BytesIO(zipapp)
    with zipfile.ZipFile(buffer, "a") as archive, tempfile.TemporaryDirectory() as folder:
        for name in [name for name in archive.namelist() if name.endswith(".py")]:
            source, compiled = Path(folder) / "source.py", Path(folder) / "source.pyc"
            source.write_bytes(archive.read(name))
            # A checked file would have to be as old as its source, whose date is fixed.
            unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), str(compiled), name, doraise=True, invalidation_mode=unchecked)
            archive.writestr(f"{name}c", compiled.read_bytes())
    return buffer.getvalue()
