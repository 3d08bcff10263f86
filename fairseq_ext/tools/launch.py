"""Start fairseq-train on GPUs, CPU processes or several nodes, with the right flags.

Write the command after -- as for one device. The flags that its processes need are added: their
number, their backends, OMP_NUM_THREADS (cores / processes, unless it is set) and, if there is no
--user-dir, this plugin. (A --user-dir of yours must import fairseq_ext: several CPU processes need
it.) Without options all GPUs of this machine are used, or one CPU process. On several nodes, run
the same command on each with its own --node-rank; --gpus and --cpu-processes count per node. The
command line is printed before it is run.

Example:
  fairseq-ext launch -- fairseq-train data-bin/mine --arch transformer_dna --max-tokens 4096 ...
  fairseq-ext launch --cpu-processes 2 -- fairseq-train data-bin/mine --arch transformer_dna ...
  fairseq-ext launch --nodes 2 --node-rank 0 --master node0:29500 -- fairseq-train ...
"""

import argparse
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.errors import LAUNCHED, LOST, Unfinished, UsageError, describe_end
from fairseq_ext.tools.command_lines import PLUGIN, parse_flags, resolve_user_dir
from fairseq_ext.tools.jobs import share_cores

# Flags by which fairseq starts processes itself, as torchrun does here.
RESERVED = [
    *("--distributed-init-method", "--distributed-rank", "--distributed-port"),
    *("--distributed-num-procs", "--distributed-no-spawn", "--tpu"),
]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext launch`."""
    add, count = parser.add_argument, _at_least(1)
    processes = parser.add_mutually_exclusive_group()
    processes.add_argument("--gpus", type=count, metavar="N", help="GPUs (default: all)")
    processes.add_argument("--cpu-processes", type=count, metavar="N", help="processes on CPUs")
    add("--nodes", type=count, metavar="N", help="machines (default: 1)")
    add("--node-rank", type=_at_least(0), metavar="R", help="which machine this is, from 0")
    add("--master", type=_address, metavar="HOST:PORT", help="machine 0, and a free port of it")
    add("--dry-run", action="store_true", help="only print the command line")
    training = "-- fairseq-train ..."
    add("command", nargs=argparse.REMAINDER, metavar=training, help="the training")


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


def run(args: argparse.Namespace) -> None:
    """Print the command line of the training, and become it or, with several processes, run it."""
    environment, command = plan_command(args)
    settings = [f"{name}={value}" for name, value in environment.items()]
    print(shlex.join([*settings, *command]), flush=True)
    if args.dry_run:
        return
    os.environ |= environment
    if command[:3] == TORCHRUN:
        run_torchrun(command[3:])
    else:
        os.execv(command[0], command)


def run_torchrun(arguments: list[str]) -> None:
    """Run torchrun in this process, which alone says why a training has ended.

    Raises:
        UsageError: one of its processes has refused to train, or has failed.
        Unfinished: one of them was killed.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ[LAUNCHED] = "1"
    logging.disable(logging.ERROR)  # of torchrun, which reports each process
    try:
        torchrun.main(arguments)
    except ChildFailedError as error:
        raise explain_failures(error.failures) from None
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        signal.signal(error.sigval, signal.SIG_DFL)
        signal.raise_signal(error.sigval)


def explain_failures(failures: Mapping[int, Any]) -> UsageError:
    """Return an error for the first process that has failed by itself, and not with another one.

    Args:
        failures: rank -> torchrun's record of its end.
    """
    said = {
        rank: failure.message["message"] if isinstance(failure.message, dict) else ""
        for rank, failure in failures.items()
    }
    rank = min(said, key=lambda rank: (said[rank] == LOST, failures[rank].timestamp))
    if said[rank]:
        return UsageError(f"{said[rank]} (process {rank} of the training)")
    return Unfinished(describe_end(f"process {rank} of the training", failures[rank].exitcode))


def plan_command(args: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """Return the environment variables to set, and the command line to become.

    Raises:
        UsageError: the arguments contradict each other or do not fit this machine.
    """
    training = _find_training(args.command)
    flags = parse_flags(training)
    if reserved := [name for name in RESERVED if name in flags]:
        raise UsageError(f"launch itself decides what {' '.join(reserved)} says; leave it out")
    on_cpu, processes = _choose_devices(args, "--cpu" in flags)
    torchrun = [*TORCHRUN, "--no-python", *_plan_meeting(args)]
    world = processes * (args.nodes or 1)
    user_dir = resolve_user_dir(flags.get("--user-dir") or args.user_dir or str(PLUGIN))
    training += _find_missing_flags(flags, on_cpu, world, user_dir)
    torchrun += ["--nproc-per-node", str(processes)]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if on_cpu else {}  # as if there were no GPUs
    return hidden | share_cores(processes), training if world == 1 else torchrun + training


def _find_training(command: Sequence[str]) -> list[str]:
    """Return the command after --, with the fairseq-train of this environment."""
    if list(command[:1]) != ["--"] or Path("".join(command[1:2])).name != "fairseq-train":
        raise UsageError(
            f"launch starts fairseq-train, not {shlex.join(command) or 'nothing'}; write "
            "fairseq-ext launch [options] -- fairseq-train ..., with the -- before it"
        )
    program = Path(sys.executable).with_name("fairseq-train")
    if not program.is_file():
        raise UsageError(f"there is no {program}; install fairseq-fixed into this environment")
    return [str(program), *command[2:]]


def _choose_devices(args: argparse.Namespace, cpu_flag: bool) -> tuple[bool, int]:
    """Return whether the training is on CPUs, and its number of processes on this node."""
    import torch  # slow

    count = torch.cuda.device_count()
    if args.gpus is None and (cpu_flag or args.cpu_processes or not count):
        return True, args.cpu_processes or 1
    gpus = args.gpus or count
    if cpu_flag or gpus > count:
        why = "--cpu contradicts" if cpu_flag else f"this machine has {count} GPUs for torch, not"
        raise UsageError(
            f"{why} --gpus {gpus}; ask for at most {count}, or for --cpu-processes (fairseq-ext "
            "doctor shows the devices)"
        )
    return False, gpus


def _plan_meeting(args: argparse.Namespace) -> list[str]:
    """Return torchrun's flags for where processes meet: on this machine, or at the master."""
    options = {"nodes": args.nodes, "node-rank": args.node_rank, "master": args.master}
    present = [f"--{name} {value}" for name, value in options.items() if value is not None]
    if len(present) < 3 and present not in ([], ["--nodes 1"]):
        raise UsageError(
            "several nodes take --nodes N, --node-rank from 0 to N - 1 and --master HOST:PORT, "
            f"not {' '.join(present)} alone; give all three on each node"
        )
    if args.nodes and (args.node_rank or 0) >= args.nodes:
        raise UsageError(
            f"--node-rank is {args.node_rank} and must be 0 to {args.nodes - 1} of --nodes "
            f"{args.nodes}; give each node its own"
        )
    if args.nodes in (None, 1):
        return ["--standalone", "--local-addr", "127.0.0.1"]
    host, _, port = args.master.rpartition(":")
    place = ["--node-rank", str(args.node_rank), "--master-addr", host, "--master-port", port]
    return ["--nnodes", str(args.nodes), *place]


def _find_missing_flags(
    flags: Mapping[str, str], on_cpu: bool, world: int, user_dir: str
) -> list[str]:
    """Return the flags to add; raise UsageError for a given one that cannot work.

    Args:
        flags: those of the training.
        on_cpu: whether it is on CPUs.
        world: the number of processes on all nodes.
        user_dir: the folder of the package that they import.
    """
    from fairseq_ext.training.machine_checks import CPU_DDP  # slow

    accepted: dict[str, Sequence[str]] = {"--distributed-world-size": [str(world)]}
    if on_cpu and world > 1:
        accepted |= {"--distributed-backend": ["gloo"], "--ddp-backend": CPU_DDP}
    missing = ["--cpu"] if on_cpu and "--cpu" not in flags else []
    if flags.get("--user-dir") != user_dir:
        missing += ["--user-dir", user_dir]
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
