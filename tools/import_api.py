"""Import a release's options and keys from upstream's stability tests: ``python -m tools.import_api FOLDER``.

FOLDER contains files of NVIDIA/TensorRT-LLM as ``RELEASE/COPY/PATH``. RELEASE is a version that ``trtllm-hpc
versions`` lists, or ``unreleased``; COPY is a tag or commit. In a clone, type for each copy

    git archive --prefix=FOLDER/1.2.1/v1.2.1/ v1.2.1 tests/unittest/api_stability tensorrt_llm/usage | tar -x

An option that only one of several copies has may come from an unmerged branch, so it is reported and left
out. The program prints the change as a diff; ``--write`` writes the change. Lines of the data files that end
with a comment stay.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from trtllm_hpc.tensorrt_llm import llm_api
from trtllm_hpc.tensorrt_llm.llm_api import SERVER
from trtllm_hpc.tensorrt_llm.releases.data_files import NEWER, UNRELEASED, parsed, read_data
from trtllm_hpc.tensorrt_llm.releases.programs import ProgramOption, load_program, newest_program

DATA = Path(__file__).parents[1] / "trtllm_hpc" / "tensorrt_llm" / "releases" / "data"
SERVE, KEYS = (DATA / name for name in ("trtllm_serve.toml", "llm_api.toml"))
_REFERENCES, _MANIFEST = "tests/unittest/api_stability", "tensorrt_llm/usage/llm_args_golden_manifest.json"
_ENGINE_KEYS = ("kwargs", "batching_type", "normalize_log_probs", "enable_tqdm")
"""Parameters of the engine path; ``TorchLlmArgs`` does not have them."""
Entry = dict[str, Any]
Found = dict[tuple[str, str], Entry]
"""Entries by sub-command and option, or by section and key."""


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def agreed(copies: Sequence[Found], release: str) -> Iterator[tuple[tuple[str, str], Entry]]:
    """Yield the entries of a release's copies. An entry of only one of several copies is reported instead."""
    counts = Counter(name for copy in copies for name in copy)
    lists = Counter(part for copy in copies for part in {part for part, _ in copy})
    for name in counts:
        if lists[name[0]] > 1 and counts[name] == 1:
            print(f"left out, only one of {lists[name[0]]} copies has it: {' '.join(name)} ({release})")
        else:
            # The copy with the most entries is the newest.
            yield name, max(copies, key=lambda copy: (name in copy, len(copy)))[name]


def options(copy: Path) -> Found:
    """Return the options of every sub-command as entries of the data file, without releases."""
    entries: Found = {}
    for file in copy.glob(f"{_REFERENCES}/references/trtllm_serve_cli.yaml"):
        for command, part in YAML(typ="safe").load(file)["commands"].items():
            for option in part["options"].values():
                flags = sorted(option["flags"], key=lambda flag: (flag.startswith("--no-"), -len(flag)))
                is_pair = option["is_flag"] and flags[-1].startswith("--no-")
                for names in [[flag] for flag in flags] if is_pair else [flags]:
                    entries[command, names[0]] = _entry(option, names)
    return entries


def _entry(option: Mapping[str, Any], names: Sequence[str]) -> Entry:
    if option["is_flag"]:
        return {"form": "flag", "names": names}
    choices = re.findall(r"'([^']+)'", option["type"])
    entry: Entry = {"form": "value", "default": option["default"], "choices": choices, "names": names}
    is_number = option["default"] is None and option["type"] in ("int", "float")
    note = "It may be repeated." if option["multiple"] else None
    entry |= {"type": option["type"] if is_number else None, "note": note}
    return {key: value for key, value in entry.items() if value not in (None, [])}


def keys(copy: Path) -> Found:
    """Return the keys of the LLM API by section. Only a copy with the manifest has keys of inner sections."""
    entries: Found = {}
    for file in copy.glob(f"{_REFERENCES}/references*/llm.yaml"):
        parameters = YAML(typ="safe").load(file)["methods"]["__init__"]["parameters"]
        entries |= {("", key): {} for key in parameters if key not in _ENGINE_KEYS}
    if (manifest := copy / _MANIFEST).is_file():
        for field in json.loads(manifest.read_text())["TorchLlmArgs"]:
            parts = field["path"].split(".")
            entries |= {(".".join(parts[:place]), part): {} for place, part in enumerate(parts)}
    return entries


def new_options(text: str, release: str, copies: Sequence[Found]) -> str:
    """Return the text of the data file with the options of a release's copies."""
    upstream = dict(agreed(copies, release))
    serve = newest_program(SERVER) if release == UNRELEASED else load_program(release, SERVER, "")
    assert serve is not None
    for name in dict.fromkeys(command for command, _ in upstream):
        command = serve if name == "serve" else serve.subcommands.get(name)
        table = "[options]" if name == "serve" else f"[subcommand.{name}.options]"
        if command is None:
            text += f'\n[subcommand.{name}]\nsince = "{release}"\n\n{table}\n'
        kept: set[str] = set()
        for entry in [entry for (part, _), entry in upstream.items() if part == name]:
            known = [command.find(option) for option in entry["names"]] if command else []
            old = next(filter(None, known), None)
            kept |= {old.name} if old else set()
            if old is None or _differs(old, entry):
                text = _with_option(text, name, table, entry, release, old)
        for option in set(command.options if command else ()) - kept:
            text = _without(text, table, option, release)
    return text


def _differs(old: ProgramOption, new: Entry) -> bool:
    here = (old.form, {*old.choices}, {old.name, *old.aliases}, old.default or None)
    return here != (new["form"], {*new.get("choices", ())}, {*new["names"]}, new.get("default") or None)


def _with_option(
    text: str, part: str, table: str, new: Entry, release: str, old: ProgramOption | None
) -> str:
    name = old.name if old else new["names"][0]
    span = {"form": new["form"], "since": release}
    span |= {key: new[key] for key in ("default", "type", "choices", "note") if key in new}
    span |= {"aliases": aliases} if (aliases := [alias for alias in new["names"] if alias != name]) else {}
    data = read_data("trtllm_serve")
    before = (data if part == "serve" else data["subcommand"].get(part, {})).get("options", {}).get(name, [])
    *spans, last = [dict(entry) for entry in (before if isinstance(before, list) else [before])] or [{}]
    if last and last.get("since") != release:
        spans.append({"until": release, **last})
    spans.append({**({"note": last["note"]} if "note" in last else {}), **span})
    lines = [
        "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in span.items()) + " }" for span in spans
    ]
    whole = lines[0] if len(lines) == 1 else "[\n" + "".join(f"  {line},\n" for line in lines) + "]"
    return _put(text, table, f'"{name}"', whole)


def new_keys(text: str, release: str, copies: Sequence[Found]) -> str:
    """Return the text of the data file with the keys of a release's copies."""
    upstream = {name for name, _ in agreed(copies, release)}
    version, sections = NEWER if release == UNRELEASED else release, read_data("llm_api")["section"]
    for section, key in sorted(upstream):
        known = sections.get(section)
        every = [known or {}, *(known or {}).get("variant", {}).values()]
        if known is None or any(key in llm_api._of_table(table, version) for table in every):
            continue
        if "by" in known or (key in known.get("since", {}) and parsed(known["since"][key]) < parsed(release)):
            print(f"edit by hand: {section} has {key} ({release}); add it to its variant, or to 'since'")
        else:
            text = _put(text, f'[section."{section}".since]', key, f'"{release}"')
    gone = llm_api._keys("", version, {}) - {key for section, key in upstream if section == ""}
    for key in sorted(gone) if upstream else ():
        text = _without(text, '[section."".since]', key, release, '[section."".until]')
    return text


def _block(text: str, table: str) -> re.Match[str] | None:
    names = {table, re.sub(r'"(\w+)"', r"\1", table)}
    return re.search(rf"^(?:{'|'.join(map(re.escape, names))})\n((?:(?!\[\w).*\n)*?)(?=\n|\Z)", text, re.M)


def _line(block: str, key: str) -> re.Match[str] | None:
    return re.search(rf"^{re.escape(key)} = (?:\[\n(?:  .*\n)*\]|.*)(.*)\n", block, re.M)


def _put(text: str, table: str, key: str, value: str) -> str:
    """Return the text with the value of a key in a table replaced or added."""
    block = _block(text, table)
    if block is None:
        return f"{text}\n{table}\n{key} = {value}\n"
    old, line = _line(block[1], key), f"{key} = {value}\n"
    body = block[1][: old.start()] + line + block[1][old.end() :] if old else block[1] + line
    return text[: block.start(1)] + body + text[block.end(1) :]


def _without(text: str, table: str, key: str, release: str, ended: str | None = None) -> str:
    """Return the text without a key that a release lacks: remove its line, or record its end in ``ended``."""
    name = key if ended else f'"{key}"'
    block = _block(text, table)
    old = _line(block[1], name) if block else None
    if old and "#" in old[0]:
        return text
    if block and old and release == UNRELEASED and f'"{release}"' in old[0] and old[0].count("\n") == 1:
        return text[: block.start(1) + old.start()] + text[block.start(1) + old.end() :]
    if ended:  # a key that has only an end exists from the first release, like the keys of the list
        text = re.sub(rf'(\[section\.""\]\nkeys = \[[^]]*?)"{key}",? ?', r"\1", text)
        return _put(text, ended, name, f'"{release}"')
    print(f"edit by hand: {table} {key} is not in {release}; write its 'until'")
    return text


def main(argv: Sequence[str] | None = None) -> None:
    """Print the change; with ``--write`` also write the data files."""
    parser = argparse.ArgumentParser(prog="python -m tools.import_api")
    folder = "contains upstream's files as RELEASE/COPY/PATH"
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=folder)
    parser.add_argument("--write", action="store_true", help="write the change into the data files")
    arguments = parser.parse_args(argv)
    for file, read, change in ((SERVE, options, new_options), (KEYS, keys, new_keys)):
        text = new = file.read_text()
        for release in sorted(arguments.folder.iterdir(), key=lambda path: parsed(path.name)):
            copies = [entries for entries in map(read, sorted(release.iterdir())) if entries]
            new = change(new, release.name, copies)
        print("\n".join(difflib.unified_diff(text.splitlines(), new.splitlines(), file.name, lineterm="")))
        if arguments.write:
            file.write_text(new)


if __name__ == "__main__":
    main()
