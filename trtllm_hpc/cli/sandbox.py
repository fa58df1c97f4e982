"""``trtllm-hpc sandbox``: a real Slurm cluster on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.shared import json_option, print_json, print_note, print_step, terminating_as_interrupt
from trtllm_hpc.errors import ExitCode

if TYPE_CHECKING:
    from trtllm_hpc.sandbox import Status

name_option = click.option(
    "--name", default="default", show_default=True, metavar="NAME", help="Name of the sandbox."
)


@click.group()
def command() -> None:
    """Run a real Slurm cluster on this machine, as root.

    The cluster is independent of any other Slurm here: its munge key, database,
    network and configuration are under /run/trtllm-hpc.

    \b
    Two nodes that claim to have four GPUs each:
      trtllm-hpc sandbox up
      export SLURM_CONF=/run/trtllm-hpc/default/etc/slurm.conf
      sinfo
      trtllm-hpc sandbox down
    """


@command.command()
@name_option
@click.option(
    "--nodes", default=2, show_default=True, type=click.IntRange(1, 32), metavar="N", help="Number of nodes."
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(0, 16),
    metavar="N",
    help="GPUs of each node.  [default: 4 claimed GPUs, or an equal share of the real GPUs]",
)
@click.option(
    "--gpus",
    "kind",
    type=click.Choice(["claimed", "real"]),
    default="claimed",
    show_default=True,
    help="real: the nodes share this machine's GPUs. claimed: the nodes only claim to have GPUs.",
)
@click.option("--install", is_flag=True, help="Install missing Debian packages; start no service.")
def up(name: str, nodes: int, gpus_per_node: int | None, kind: str, install: bool) -> None:
    """Start a sandbox and wait until its nodes are idle.

    \b
    Examples:
      trtllm-hpc sandbox up --nodes 2 --gpus-per-node 4
      trtllm-hpc sandbox up --nodes 2 --gpus real
      trtllm-hpc sandbox up --name second
    """
    from trtllm_hpc.sandbox import Sandbox
    from trtllm_hpc.sandbox.requirements import install_missing

    sandbox = Sandbox(name)
    started = time.monotonic()
    with terminating_as_interrupt():
        if install:
            install_missing(tell=print_step)
        fresh = sandbox.up(nodes, gpus_per_node, real_gpus=kind == "real", tell=print_step)
    if fresh:
        print_note(f"sandbox {name}: up after {time.monotonic() - started:.1f} s")
    else:
        print_note(f"sandbox {name}: is already up: nothing to do")
    _show(sandbox.status())


@command.command()
@name_option
def down(name: str) -> None:
    """Kill the jobs of a sandbox, and remove it.

    \b
    Examples:
      trtllm-hpc sandbox down
      trtllm-hpc sandbox down --name second
    """
    from trtllm_hpc.sandbox import Sandbox

    was_there = Sandbox(name).down(tell=print_step)
    outcome = "down, nothing is left" if was_there else "does not exist: nothing to do"
    print_note(f"sandbox {name}: {outcome}")


@command.command()
@name_option
@json_option
def status(name: str, as_json: bool) -> int:
    """Show the state of a sandbox, its daemons and its nodes.

    The exit code is 13 if the sandbox is down or degraded.
    """
    from trtllm_hpc.sandbox import Sandbox

    found = Sandbox(name).status()
    print_json(found) if as_json else _show(found)
    return ExitCode.OK if found.state == "up" else ExitCode.SANDBOX


def _show(status: Status) -> None:
    click.echo(f"sandbox {status.name}: {status.state}")
    for problem in status.problems:
        click.echo(f"  problem: {problem}")
    if status.state == "down":
        click.echo(f"  next: trtllm-hpc sandbox up --name {status.name}")
        return
    if status.state == "degraded":
        click.echo(f"  next: trtllm-hpc sandbox down --name {status.name}")
    if not status.slurm_conf:
        return
    answer = {True: "answers", False: "does not answer", None: "only root can check"}
    for daemon, answers in status.daemons.items():
        click.echo(f"  {daemon:<12} {answer[answers]}")
    for node in status.nodes:
        gpus = f"GPUs: {', '.join(node.gpus) or status.gpus_per_node}"
        click.echo(f"  {node.name:<24} {node.address:<15} {gpus}  {node.state}")
    click.echo(f"  partitions   {', '.join(status.partitions)}")
    click.echo(f"  logs         {status.logs}")
    click.echo(f"  to use it    export SLURM_CONF={status.slurm_conf}")
    if status.real_gpus:
        # The shipped profile expects four claimed GPUs on each node.
        click.echo(f"  to submit    --cluster sandbox --set cluster.slurm_conf={status.slurm_conf}")
        click.echo(f"               --set cluster.gpus_per_node={status.gpus_per_node}")
