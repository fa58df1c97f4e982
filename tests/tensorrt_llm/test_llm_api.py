"""What ``trtllm-serve`` and the LLM API's configuration take, release by release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.tensorrt_llm.outcomes import REFUSED, TAKEN, findings, of_1_2_1
from trtllm_hpc.tensorrt_llm.llm_api import FRONT, SERVER, unknown_keys
from trtllm_hpc.tensorrt_llm.releases.data_files import UNRELEASED, parsed, read_data
from trtllm_hpc.tensorrt_llm.releases.programs import Program, ProgramOption, load_program, newest_program
from trtllm_hpc.tensorrt_llm.releases.release import releases

VERSIONS = [release.version for release in releases()]
TO_COME = UNRELEASED


def test_the_front_of_disaggregated_serving_has_options_of_its_own() -> None:
    def front(command: Program | None) -> Mapping[str, ProgramOption]:
        assert command is not None
        return command.subcommands["disaggregated"].options

    of_1_1 = front(load_program("1.1.0", SERVER, "llama"))
    assert of_1_1["--config_file"].aliases == ("-c",) and of_1_1["--request_timeout"].default == 180
    assert "--metrics-log-interval" not in front(load_program("0.20.0", SERVER, "llama"))
    before = load_program("0.18.2", SERVER, "llama")
    assert before is not None and before.subcommands == {}
    assert "--schedule_style" in front(newest_program(SERVER))


def test_the_verdicts_on_values_are_upstream_s() -> None:
    assert all(findings(line) for line in of_1_2_1(REFUSED))
    assert not any(findings(line) for line in of_1_2_1(TAKEN))


def tables() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, section in read_data("llm_api")["section"].items():
        yield name, section
        for variant, table in section.get("variant", {}).items():
            yield f"{name}[{variant}]", table


def test_the_data_name_known_releases_and_where_they_were_read() -> None:
    data = read_data("llm_api")
    assert data["newer"]["source"] and all(said["source"] for said in data["read"].values())
    since_first = VERSIONS[VERSIONS.index("0.20.0") :]
    assert list(data["read"]) == [version for version in since_first if version in data["read"]]
    for name, table in tables():
        since, until = table.get("since", {}), table.get("until", {})
        named = [
            *since.values(),
            *until.values(),
            *(each for gap in table.get("missing", {}).values() for each in gap),
        ]
        named += [*table.get("not_null", {}).values(), *table.get("required", {}).values()]
        named += [first for words in table.get("values", {}).values() for first in words.values()]
        named += [table[each] for each in ("first", "ended", "checked_since") if each in table]
        assert {*named} <= {
            *VERSIONS,
            TO_COME,
        }, name
        assert not set(table.get("keys", ())) & {*since, *until}, name
        assert all(parsed(since[key]) < parsed(until[key]) for key in set(since) & set(until)), name
        assert set(table.get("missing", {})) <= set(table.get("keys", ())), name


def test_a_section_is_below_a_key_of_the_section_above() -> None:
    for name in filter(None, read_data("llm_api")["section"]):
        if name.partition(".")[0] == FRONT:
            continue  # of another file
        above, _, key = name.rpartition(".")
        inner: Mapping[str, Any] = {key: {"zzz": 1}}
        for part in reversed(above.split(".") if above else []):
            inner = {part: inner}
        assert f"{name}.zzz" in [key.path for key in unknown_keys(None, inner)], name
