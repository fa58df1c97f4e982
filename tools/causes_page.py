"""``docs/causes.md``: every entry of the table of causes, by area."""

from __future__ import annotations

from trtllm_hpc.logs.causes.table import AREAS, Kind, causes


def page() -> str:
    """Return ``docs/causes.md``: every entry of the table of causes."""
    total = sum(cause.kind is not Kind.NOISE for cause in causes().values())
    parts = [_HEAD.format(total=total)]
    for area in AREAS:
        rows = [cause for cause in causes().values() if cause.area == area and cause.kind is not Kind.NOISE]
        parts.append(f"## {area}\n\n| id | what has happened | what to do | seen in |\n|---|---|---|---|\n")
        for cause in rows:
            mark = " (a consequence)" if cause.kind is Kind.CONSEQUENCE else ""
            cells = (f"`{cause.id}`{mark}", cause.sentence, cause.next, ", ".join(cause.sources))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
        parts.append("\n")
    noise = ", ".join(f"`{cause.id}`" for cause in causes().values() if cause.kind is Kind.NOISE)
    return "".join(parts) + f"Ignored, since runs that are well print it too: {noise}.\n"


_HEAD = """# Causes of failures

`trtllm-hpc status`, `submit --wait` and `logs` name the cause of a failed run; `trtllm-hpc explain FILE...`
names it in any log, also of a job that this toolkit did not start:

```console
$ trtllm-hpc explain slurm-4711.out
cause: Ranks 2 and 0 were given the same GPU (1000).
next: Every rank has to see all GPUs of its node, or one of its own: check gpus_per_node, ...
  slurm-4711.out:118, rank 2: gpu3:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 ...
```

All logs of a job are read together. A root cause goes before its consequences on other ranks, whatever their
clocks say; what ends a process before what fails single requests; a precise cause before one that only names
the kind of failure. What runs print that are well (noise) is ignored. The exit code of `explain` is 1 if a
cause was found, else 0; `--json` prints the list ([fields](json.md#explain)).

The table below has {total} causes. It is made of `trtllm_hpc/logs/causes/data/*.toml` (`make golden`), where
words in braces are filled in from the log. A log with each cause is quoted in `tests/logs/excerpts/`.

"""
