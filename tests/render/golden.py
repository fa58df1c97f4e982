"""Rendered run folders, kept for review: whole, or as the difference from another case.

A case without a base has all its files in its folder. A derived case has there
the files that its base lacks, and a file ``from-BASE.diff``. This names the
base's files that the case lacks, and those that differ; all others are the
base's::

    without build.sh
    diff serve.sbatch
    @@
     a line before
    -a line of the base
    +a line of this case

Hunks are those of a unified diff without line numbers, so that a line added to
a template changes the base alone and no diff. A hunk belongs to the first place
after the previous hunk where its old lines stand, and has as many unchanged
lines around its changes as this takes. So a diff and its base give whole files
again, byte for byte. An empty last line is the end of the file.
"""

from __future__ import annotations

import difflib
import itertools
import re
from pathlib import Path

Files = dict[str, str]
"""Texts of a run folder's files, by their paths in it."""

_LINES_AROUND = 2


def read_case(golden: Path, name: str) -> Files:
    """Return a case's whole files."""
    folder = golden / name
    files: Files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        file = path.relative_to(folder).as_posix()
        text = path.read_text(encoding="utf-8")
        if file.startswith("from-"):
            files |= _derived(read_case(golden, file.removeprefix("from-").removesuffix(".diff")), text, path)
        else:
            files[file] = text
    return files


def write_case(golden: Path, name: str, files: Files, base: tuple[str, Files] | None) -> None:
    """Write a case's files; with a base, its name and whole files, what differs from it."""
    whole = dict(files)
    if base is not None:
        base_name, base_files = base
        whole = {file: text for file, text in files.items() if file not in base_files}
        whole[f"from-{base_name}.diff"] = "".join(
            f"diff {file}\n{difference(text, files[file])}" if file in files else f"without {file}\n"
            for file, text in sorted(base_files.items())
            if text != files.get(file)
        )
    for file, text in whole.items():
        target = golden / name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def assert_reviewed(golden: Path, name: str, files: Files) -> None:
    """Fail with a diff for each of a case's files that is not the one in the golden folder."""
    reviewed = read_case(golden, name)
    assert sorted(files) == sorted(reviewed)
    for file, text in files.items():
        before, after = (side.splitlines(keepends=True) for side in (reviewed[file], text))
        diff = "".join(difflib.unified_diff(before, after, "reviewed", "rendered"))
        assert not diff, f"{name}/{file} changed; if it should, run 'make golden':\n{diff}"


def difference(base: str, text: str) -> str:
    """Return the hunks from which ``patched`` makes a text of its base."""
    old, new = base.split("\n"), text.split("\n")
    for around in itertools.count(_LINES_AROUND):
        diff = itertools.islice(difflib.unified_diff(old, new, n=around, lineterm=""), 2, None)
        lines = ("@@" if line.startswith("@@") else line for line in diff)
        # An unchanged empty line has no space before it, so that no line ends with a space.
        hunks = "".join(("" if line == " " else line) + "\n" for line in lines)
        if patched(base, hunks) == text:
            return hunks
    raise AssertionError("unreachable: hunks with all lines fit one place only")


def patched(base: str, hunks: str) -> str | None:
    """Return the base with its hunks applied; `None` where a hunk's old lines are missing."""
    rest, done = base.split("\n"), []
    for hunk in re.split(r"(?m)^@@\n", hunks)[1:]:
        lines = [line or " " for line in hunk.split("\n")[:-1]]
        old = [line[1:] for line in lines if line[0] in " -"]
        starts = range(len(rest) - len(old) + 1)
        start = next((start for start in starts if rest[start : start + len(old)] == old), None)
        if start is None:
            return None
        done += rest[:start] + [line[1:] for line in lines if line[0] in " +"]
        rest = rest[start + len(old) :]
    return "\n".join(done + rest)


def _derived(base: Files, diff: str, path: Path) -> Files:
    """Return the files that a ``from-BASE.diff`` describes."""
    files = dict(base)
    for part in re.split(r"(?m)^(?=without |diff )", diff)[1:]:
        head, _, hunks = part.partition("\n")
        kind, file = head.split(" ", 1)
        text = patched(files.pop(file, ""), hunks)
        assert file in base and text is not None, f"{path}: {file} no longer fits; run 'make golden'"
        if kind == "diff":
            files[file] = text
    return files
