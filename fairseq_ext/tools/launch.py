"""Start fairseq-train on GPUs, CPU processes or several nodes, with the right flags.

Write the command after -- as for one device. What its processes need is added: their number, their
backends, OMP_NUM_THREADS (cores / processes, unless it is set) and, if there is no --user-dir, this
plugin. (A --user-dir of yours must import fairseq_ext: several CPU processes need it.) Without
options all GPUs of this machine are used, or one CPU process. On several nodes, run the same
command on each with its own --node-rank; --gpus and --cpu-processes count per node. The command
line is printed before it is run.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairseq_ext.errors import UsageError
from fairseq_ext.patches.processes import CPU_DDP

EXAMPLE = """\
  fairseq-ext launch -- fairseq-train data-bin/mine --arch transformer_dna --max-tokens 4096 ...
  fairseq-ext launch --cpu-processes 2 -- fairseq-train data-bin/mine --arch transformer_dna ...
  fairseq-ext launch --nodes 2 --node-rank 0 --master node0:29500 -- fairseq-train ..."""

PACKAGE = Path(__file__).parent.parent

# How fairseq starts processes by itself, which torchrun does here.
OURS = [
    *("--distributed-init-method", "--distributed-rank", "--distributed-port"),
    *("--distributed-num-procs", "--distributed-no-spawn", "--tpu"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    count = _at_least(1)
    processes = parser.add_mutually_exclusive_group()
    processes.add_argument("--gpus", type=count, metavar="N", help="GPUs (default: all)")
    processes.add_argument("--cpu-processes", type=count, metavar="N", help="processes on CPUs")
    parser.add_argument("--nodes", type=count, metavar="N", help="machines (default: 1)")
    parser.add_argument(
        "--node-rank", type=_at_least(0), metavar="R", help="which machine this is, from 0"
    )
    parser.add_argument(
        "--master", type=_address, metavar="HOST:PORT", help="machine 0, and a free port of it"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the command line")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- fairseq-train ...", help="the training"
    )


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {least}")
        return int(text)

    return number


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT, such as node0:29500")
    return text


def run(given: argparse.Namespace) -> None:
    environment, line = plan(given)
    settings = [f"{name}={value}" for name, value in environment.items()]
    print(shlex.join([*settings, *line]), flush=True)
    if not given.dry_run:
        os.execve(line[0], line, os.environ | environment)


def plan(given: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """Environment variables to set, and the command line to become.

    Raises:
        UsageError: what was given contradicts itself or does not fit this machine.
    """
    training = _training(given.command)
    flags = _flags(training)
    on_cpu, processes = _devices(given, "--cpu" in flags)
    torchrun = _torchrun(given, processes)
    training += _missing(flags, on_cpu, processes * (given.nodes or 1))
    return _environment(on_cpu, processes), [*torchrun, *training]


def _training(command: Sequence[str]) -> list[str]:
    """The command after --, with the fairseq-train of this environment."""
    if list(command[:1]) != ["--"] or Path("".join(command[1:2])).name != "fairseq-train":
        raise UsageError(
            f"launch starts fairseq-train, not {shlex.join(command) or 'nothing'}; write "
            "fairseq-ext launch [options] -- fairseq-train ..., with the -- before it"
        )
    program = Path(sys.executable).with_name("fairseq-train")
    if not program.is_file():
        raise UsageError(f"there is no {program}; install fairseq-fixed into this environment")
    return [str(program), *command[2:]]


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """Flag -> the value given last, as --flag value or --flag=value."""
    flags = {}
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            flags[name] = value if equals else following
    if named := [name for name in OURS if name in flags]:
        raise UsageError(f"launch itself decides what {' '.join(named)} says; leave it out")
    return flags


def _devices(given: argparse.Namespace, cpu_flag: bool) -> tuple[bool, int]:
    """Whether the training is on CPUs, and how many processes of it are on this node."""
    import torch  # slow

    there = torch.cuda.device_count()
    if given.gpus is None and (cpu_flag or given.cpu_processes or not there):
        return True, given.cpu_processes or 1
    gpus = given.gpus or there
    if cpu_flag or gpus > there:
        why = "--cpu contradicts" if cpu_flag else f"this machine has {there} GPUs for torch, not"
        raise UsageError(
            f"{why} --gpus {gpus}; ask for at most {there}, or for --cpu-processes (fairseq-ext "
            "doctor shows the devices)"
        )
    return False, gpus


def _torchrun(given: argparse.Namespace, processes: int) -> list[str]:
    """What starts the processes: nothing if there is one."""
    place = _place(given)
    if processes * (given.nodes or 1) == 1:
        return []
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    return [*torchrun, *place, "--nproc-per-node", str(processes)]


def _place(given: argparse.Namespace) -> list[str]:
    """Where the processes meet: on a free port of this machine, or at the master."""
    several = {"nodes": given.nodes, "node-rank": given.node_rank, "master": given.master}
    said = [f"--{name} {value}" for name, value in several.items() if value is not None]
    alone = said in ([], ["--nodes 1"])
    if not alone and len(said) < 3:
        raise UsageError(
            "several nodes take --nodes N, --node-rank from 0 to N - 1 and --master HOST:PORT, "
            f"not {' '.join(said)} alone; give all three on each node"
        )
    if not alone and given.node_rank >= given.nodes:
        raise UsageError(
            f"--node-rank is {given.node_rank} and must be 0 to {given.nodes - 1} of --nodes "
            f"{given.nodes}; give each node its own"
        )
    if alone or given.nodes == 1:
        return ["--standalone", "--local-addr", "127.0.0.1"]
    host, _, port = given.master.rpartition(":")
    where = ["--node-rank", str(given.node_rank), "--master-addr", host, "--master-port", port]
    return ["--nnodes", str(given.nodes), *where]


def _missing(flags: Mapping[str, str], on_cpu: bool, world: int) -> list[str]:
    """The flags to add; raises UsageError for one that was given and cannot work."""
    accepted: dict[str, Sequence[str]] = {"--distributed-world-size": [str(world)]}
    if on_cpu and world > 1:
        accepted |= {"--distributed-backend": ["gloo"], "--ddp-backend": CPU_DDP}
    missing = ["--cpu"] if on_cpu and "--cpu" not in flags else []
    if "--user-dir" not in flags:
        missing += ["--user-dir", str(PACKAGE)]
    for flag, values in accepted.items():
        if flag not in flags:
            missing += [flag, values[0]]
        elif flags[flag] not in values:
            device = "CPUs" if on_cpu else "GPUs"
            raise UsageError(
                f"{flag} {flags[flag]} does not fit {world} processes on {device}, which take "
                f"{' or '.join(values)}; leave it out"
            )
    return missing


def _environment(on_cpu: bool, processes: int) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    threads = {"OMP_NUM_THREADS": str(max(1, cores // processes))}
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if on_cpu else {}  # as if there were none
    return hidden | ({} if "OMP_NUM_THREADS" in os.environ else threads)
