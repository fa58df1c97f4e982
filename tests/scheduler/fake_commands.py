"""Slurm's commands on one file of state; run as a program, under each command's name.

Strict: whatever is not known here ends with exit code 64 and is written down
as a violation, which fails the test. Words and exit codes are those of Slurm
22.05. It is started hundreds of times, so it starts fast: ``python3 -I -S``,
compiled beforehand, with imports that cost next to nothing (``json``,
``pathlib`` or ``typing`` take longer than all the rest).
"""

from __future__ import annotations

import fcntl
import marshal
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

FINAL = ("COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED", "PREEMPTED")
DIRECTIVES = (
    "job-name", "output", "open-mode", "no-requeue", "propagate", "clusters", "partition", "account", "qos",
    "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "gres", "gpus-per-node", "exclusive",
    "time", "mail-type", "comment",
)  # fmt: skip
KNOWN_DEPENDENCIES = ("after", "afterok", "afterany")
ACCOUNTED = (
    "JobID,State,ExitCode,NodeList,Submit,Start,End,AllocTRES,ConsumedEnergyRaw,"
    "UID,User,JobName,WorkDir,SubmitLine"
)
SEPARATOR = "\x1f"
SOMEBODY = {"user": "ana", "name": "job", "folder": "/home/user", "script": "(null)", "output": "/dev/null"}
"""Of a job of which a test says nothing else: it was submitted by ``sbatch --wrap``."""


def read(file: str) -> dict[str, Any]:
    """The state that lies in a file."""
    with open(file, "rb") as stream:  # noqa: PTH123
        record: dict[str, Any] = marshal.load(stream)
    return record


def write(file: str, record: dict[str, Any]) -> None:
    """Put a state in place, whole at every moment."""
    with open(f"{file}.new", "wb") as stream:  # noqa: PTH123
        marshal.dump(record, stream)
    os.replace(f"{file}.new", file)  # noqa: PTH105


class Cluster:
    """The state of the fake, as the commands see it."""

    def __init__(self, file: str, record: dict[str, Any]) -> None:
        self.file = file
        self.jobs: dict[str, dict[str, Any]] = record["jobs"]
        self.record = record
        self.asked: str | None = None
        """The cluster that a command names by ``--clusters``."""

    def violation(self, command: str, what: str) -> NoReturn:
        """Refuse what no Slurm command was seen to take, or nothing here models."""
        self.record["violations"].append(f"{command}: {what}")
        self.save()
        print(f"{command}: not known to the fake: {what}", file=sys.stderr)
        sys.exit(64)

    def save(self) -> None:
        write(self.file, self.record)

    def components(self, job: str) -> list[tuple[str, dict[str, Any]]]:
        """The lines that Slurm has of a job; of a heterogeneous one in whatever order."""
        first = self.jobs[job]
        further = first.get("further")
        if further is None:
            return [(job, first)]
        rows = [(f"{job}+{number}", {**first, **one}) for number, one in enumerate([{}, *further])]
        return rows[::-1]

    def visible(self, job: str) -> bool:
        """Whether the controller still remembers a job."""
        its = self.jobs.get(job, {"forgotten": True})
        return not its.get("forgotten") and its.get("cluster") == self.asked


def options(cluster: Cluster, command: str, arguments: list[str], known: dict[str, bool]) -> dict[str, str]:
    """``--name=value`` options, each of which must be known; the rest under the empty name."""
    found: dict[str, str] = {}
    rest = []
    for argument in arguments:
        if not argument.startswith("-"):
            rest.append(argument)
            continue
        name, has_value, value = argument.partition("=")
        if name not in known or bool(has_value) != known[name]:
            cluster.violation(command, argument)
        found[name] = value
    found[""] = "\0".join(rest)
    return found


def sbatch(cluster: Cluster, arguments: list[str]) -> int:
    known = {"--parsable": False, "--dependency": True, "--kill-on-invalid-dep": True, "--exclude": True}
    known |= {"--comment": True, "--job-name": True}
    excluded = [word for word in arguments if word.startswith("--exclude=")]
    components = 1 + arguments.count(":")
    given = options(cluster, "sbatch", [word for word in arguments if word != ":"], known)
    if components > 1 and len(excluded) != components:
        cluster.violation("sbatch", " ".join(arguments))
    if "--parsable" not in given or "\0" in given[""]:
        cluster.violation("sbatch", " ".join(arguments))
    if given.get("--kill-on-invalid-dep", "yes") != "yes":
        cluster.violation("sbatch", "--kill-on-invalid-dep")
    with open(given[""], "rb") as stream:  # noqa: PTH123
        content = stream.read()
    text = content.decode()
    refusal = _bad_directive(cluster, text) or _bad_dependency(cluster, given.get("--dependency"))
    if refusal:
        print(f"sbatch: error: Batch job submission failed: {refusal}", file=sys.stderr)
        return 1
    job = str(cluster.record["next_id"])
    cluster.record["next_id"] += 1
    cluster.jobs[job] = {
        "state": "PENDING",
        "reason": "Dependency" if "--dependency" in given else "Priority",
        "script": given[""],
        "name": given.get("--job-name") or _directive(text, "job-name"),
        "comment": given.get("--comment") or _directive(text, "comment"),
        "folder": os.getcwd(),  # noqa: PTH109
        "output": _directive(text, "output"),
        "submit_line": "sbatch " + " ".join(arguments),
        "content": content,
        "cluster": cluster.asked,
        "dependency": given.get("--dependency"),
        "exclude": given.get("--exclude"),
        "kill_on_invalid": "--kill-on-invalid-dep" in given,
        "environment": dict(os.environ),
    }
    print(job if cluster.asked is None else f"{job};{cluster.asked}")
    return 0


def _directive(text: str, name: str) -> str:
    """The value of an option in a script; a quoted one is without its quotes."""
    lines = [line for line in text.split("\n") if line.startswith(f"#SBATCH --{name}=")]
    return lines[0].partition("=")[2].strip('"') if lines else ""


def _bad_directive(cluster: Cluster, text: str) -> str | None:
    for line in text.split("\n"):
        if not line.startswith("#SBATCH --"):
            if line.startswith("#SBATCH") and line != "#SBATCH hetjob":
                cluster.violation("sbatch", line)
            continue
        name, _, value = line.removeprefix("#SBATCH --").partition("=")
        if name not in DIRECTIVES:
            cluster.violation("sbatch", f"#SBATCH --{name}")
        if name == "partition" and value not in cluster.record["partitions"]:
            return "Invalid partition name specified"
        if name == "account" and value not in cluster.record["accounts"]:
            return "Invalid account or account/partition combination specified"
    return None


def _bad_dependency(cluster: Cluster, text: str | None) -> str | None:
    for condition in text.split(",") if text else []:
        kind, _, job = condition.partition(":")
        if kind not in KNOWN_DEPENDENCIES:
            cluster.violation("sbatch", f"--dependency={text}")
        if not cluster.visible(job):
            return "Job dependency problem"
    return None


def squeue(cluster: Cluster, arguments: list[str]) -> int:
    if arguments == ["--noheader", "--me", f"--format={SEPARATOR.join(('%i', '%T', '%o', '%k %j'))}"]:
        for job, info in cluster.jobs.items():
            state = info["state"].split(" ")[0]
            if cluster.visible(job) and state not in FINAL:
                kept = f"{info.get('comment') or '(null)'} {info.get('name')}"
                print(SEPARATOR.join([job, state, info.get("script") or "", kept]))
        print(SEPARATOR.join(["7_[1-9]", "PENDING", "/home/user/array.sh", "(null) of the user's own"]))
        return 0
    if arguments == ["--noheader", "--all", f"--user={os.getuid()}", "--format=%A"]:
        # Asked only where a job finds what another one may have left on this machine.
        print("\n".join(cluster.jobs))
        return 0
    known = {"--noheader": False, "--states": True, "--format": True, "--jobs": True}
    given = options(cluster, "squeue", arguments, known)
    fields = {"%i": "id", "%T": "state", "%r": "reason", "%N": "nodes"}
    fields |= {"%V": "submitted", "%S": "started", "%e": "ends"}
    fields |= {"%U": "uid", "%u": "user", "%j": "name", "%Z": "folder", "%o": "script"}
    columns = given["--format"].split(SEPARATOR)
    if given["--states"] != "all" or given[""] or any(column not in fields for column in columns):
        cluster.violation("squeue", " ".join(arguments))
    if os.environ.get("SLURM_TIME_FORMAT") != "%s":
        cluster.violation("squeue", "moments in the site's own format")
    wanted = given["--jobs"].split(",")
    if len(wanted) == 1 and not cluster.visible(wanted[0]):
        # Several unknown ids are passed over in silence; a single one is an error.
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    for job in wanted:
        for name, info in cluster.components(job) if cluster.visible(job) else ():
            row = {"reason": "None", "nodes": "", **described(info), "id": name}
            row = {**dict.fromkeys(("submitted", "started", "ends"), "N/A"), **row}
            row["state"] = row["state"].split(" ")[0]
            print(SEPARATOR.join(str(row[fields[column]]) for column in columns))
    return 0


def sinfo(cluster: Cluster, arguments: list[str]) -> int:
    if arguments == ["--noheader", "--Node", "--partition=batch", "--format=%N|%n|%t"]:
        for node in cluster.record["nodes"]:
            state = "drain" if node in cluster.record["drained"] else "idle"
            print(f"{node}|{node}|{state}")
        return 0
    if arguments[-1] == "--format=%N":
        print("n1")
        return 0
    if arguments == ["--noheader", "--format=%P|%D|%G|%c|%m|%l"]:
        print("batch*|2|gpu:8|64|256000|infinite")
        return 0
    if [*arguments[:2], *arguments[3:]] == ["--noheader", "--list-reasons", "--format=%N|%H|%E"]:
        for node, (at, why) in cluster.record["drained"].items():
            print(f"{node}|{at}|{why}")
        return 0
    cluster.violation("sinfo", " ".join(arguments))


def sacct(cluster: Cluster, arguments: list[str]) -> int:
    known = {
        "--noheader": False,
        "--parsable2": False,
        "--delimiter": True,
        "--allocations": False,
        "--duplicates": False,
        "--format": True,
        "--jobs": True,
    }
    given = options(cluster, "sacct", arguments, known)
    if set(given) != {*known, ""} or (given["--format"], given["--delimiter"]) != (ACCOUNTED, SEPARATOR):
        cluster.violation("sacct", " ".join(arguments))
    if not cluster.record["accounting"]:
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    for job in given["--jobs"].split(","):
        rows = cluster.components(job) if job in cluster.jobs else []
        for name, info in [*((job, one) for _, its in rows[:1] for one in its.get("before", ())), *rows]:
            if info.get("unaccounted"):
                continue
            row = [name, info["state"], info.get("exit", "0:0"), info.get("nodes") or "None assigned"]
            row += [info.get(name, "Unknown") for name in ("submitted", "started", "ends")]
            row += [info.get("given", ""), info.get("energy", "")]
            # For seconds the database has the job's times, and nothing else.
            who: dict[str, Any] = {
                "uid": 0,
                "user": "root",
                "name": "allocation",
                "folder": "",
                "submit_line": "",
            }
            who = who if info.get("unnamed") else described(info)
            row += [who[name] for name in ("uid", "user", "name")]
            # slurmdbd keeps another character in the place of quotes.
            row += [who["folder"].replace('"', "`"), who["submit_line"]]
            print(SEPARATOR.join(map(str, row)))
    return 0


def described(info: dict[str, Any]) -> dict[str, Any]:
    """What is known of a job, also of what a test has not said."""
    found = {"uid": os.getuid(), **SOMEBODY, **info}
    return {"submit_line": f"sbatch --parsable {found['script']}", **found}


def scontrol(cluster: Cluster, arguments: list[str]) -> int:
    if arguments == ["show", "node", "n1"]:
        print(f"NodeName=n1 Arch={os.uname().machine} CoresPerSocket=1")
        return 0
    if arguments == ["show", "config"]:
        print("DefMemPerNode           = UNLIMITED")
        return 0
    if arguments == ["--oneliner", "show", "partition"]:
        for name, limits in cluster.record["partitions"].items():
            # Part of a line as Slurm 22.05 prints it.
            fields = {"MaxNodes": "UNLIMITED", "MaxTime": "UNLIMITED", "TotalNodes": 8, **limits}
            print(
                f"PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL "
                f"Default={'YES' if name == 'batch' else 'NO'} QoS=N/A MinNodes=0 State=UP "
                + " ".join(f"{key}={value}" for key, value in fields.items())
            )
        return 0
    if arguments[:2] != ["show", "job"] or len(arguments) != 3:
        cluster.violation("scontrol", " ".join(arguments))
    job = arguments[2]
    if not cluster.visible(job):
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    for _, info in cluster.components(job):
        _show_job(job, info)
    return 0


def _show_job(job: str, info: dict[str, Any]) -> None:
    """Part of the lines that Slurm 22.05 prints, in its order."""
    who = described(info)
    print(
        f"JobId={job} JobName={who['name']}\n"
        f"   UserId={who['user']}({who['uid']}) GroupId=users(100) MCS_label=N/A\n"
        f"   JobState={info['state'].split(' ')[0]} Reason=None Dependency=(null)\n"
        f"   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={info.get('exit', '0:0')}\n"
        "   ReqNodeList=(null) ExcNodeList=(null)\n"
        f"   NodeList={info.get('nodes') or '(null)'}\n"
        f"   Command={who['script']}\n   WorkDir={who['folder']}\n"
        f"   StdErr={who['output']}\n   StdIn=/dev/null\n   StdOut={who['output']}\n   Power=\n   \n"
    )


def scancel(cluster: Cluster, arguments: list[str]) -> int:
    given = options(cluster, "scancel", arguments, {"--user": True, "--name": True})
    code = 0
    for job in given[""].split("\0"):
        if not cluster.visible(job) or cluster.jobs[job]["state"].split(" ")[0] in FINAL:
            # With --user or --name, Slurm says the same of jobs that have ended.
            print(
                f"scancel: error: Kill job error on job id {job}: Invalid job id specified", file=sys.stderr
            )
            code = 1
            continue
        who = described(cluster.jobs[job])
        uid, name = str(who["uid"]), who["name"]
        if (given.get("--user", uid), given.get("--name", name)) == (uid, name):
            cluster.jobs[job].update(state="CANCELLED by 1000", reason="None", exit="0:15")
    return code


COMMANDS: dict[str, Callable[[Cluster, list[str]], int]] = {
    command.__name__: command for command in (sbatch, squeue, sinfo, sacct, scontrol, scancel)
}


def trouble(record: dict[str, Any], name: str) -> tuple[str | None, float]:
    """What goes wrong with this call: the words of a refusal, and seconds until the answer."""
    waiting = record["troubles"].get(name, [])
    if not waiting or waiting[0][2] not in (None, *(call[0] for call in record["calls"])):
        return None, 0
    words, after_s, _ = waiting.pop(0)
    return words, after_s


def main() -> int:
    """Answer as the command whose name this was called by."""
    name, file, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(f"{file}.lock", "a") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = Cluster(file, read(file))
        cluster.record["calls"].append([name, *arguments])
        asked = [word.partition("=")[2] for word in arguments if word.startswith("--clusters=")]
        arguments = [word for word in arguments if not word.startswith("--clusters=")]
        cluster.asked = asked[0] if asked else None
        if asked and name in ("squeue", "sinfo"):
            print(f"CLUSTER: {asked[0]}")
        words, after_s = trouble(cluster.record, name)
        code = 1 if words else COMMANDS[name](cluster, arguments)
        cluster.save()
    # Slurm has done its part; what takes long is the answer.
    time.sleep(after_s)
    if words:
        print(words, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
