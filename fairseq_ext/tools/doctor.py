"""Check that fairseq can train here: versions, devices, and what is missing.

Every complaint ends with its remedy. The exit code is 0 if training can run, and 1 if something
that training requires is missing or wrong. If even `fairseq-ext` does not start:
python fairseq_ext/tools/doctor.py

With --user-dir it reads your package too, and names the import paths of earlier versions in it.

Example:
  fairseq-ext doctor
"""

import argparse
import importlib
import logging
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parent.parent

# fairseq, and compiled parts that its commands cannot do without: what each is needed for.
FAIRSEQ = {
    "fairseq": "everything",
    "fairseq.data.data_utils_fast": "batches",
    "fairseq.data.token_block_utils_fast": "language models",
    "fairseq.libbleu": "fairseq-generate",
}

MISSING = "missing"
INSTALL = "pip install --no-build-isolation"
REBUILD = f"{INSTALL} --no-cache-dir --no-deps --force-reinstall fairseq-fixed"


class Finding(NamedTuple):
    """A line of the report.

    Attributes:
        subject: the name of what was examined.
        state: its version or condition.
        remedy: a command or an advice; empty if nothing is wrong.
        required: whether nothing trains while it is wrong.
    """

    subject: str
    state: str
    remedy: str = ""
    required: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext doctor`."""
    text = "your package, whose files are read for import paths of earlier versions"
    path = "only print the folder of this package, for --user-dir of fairseq's commands"
    parser.add_argument("--path", action="store_true", help=path)
    # by another name than that of a package to be imported
    parser.add_argument("--user-dir", dest="package", type=Path, metavar="FOLDER", help=text)


def run(args: argparse.Namespace) -> None:
    """Print all findings; exit with an error if training cannot run."""
    if args.path:
        print(PACKAGE)
        return
    package = check_package(args.package) if args.package else ()
    wrong = []
    for finding in chain(*(check() for check in CHECKS), package):
        mark = "" if not finding.remedy else "WRONG" if finding.required else "note"
        line = f"{mark:5}  {finding.subject:36}  {finding.state}"
        print(f"{line} -> {finding.remedy}" if finding.remedy else line, flush=True)
        if mark == "WRONG":
            wrong.append(finding.subject)
    if wrong:
        sys.exit(f"error: training cannot run before these are mended: {', '.join(wrong)}")
    print("Training can run.")


def _try_import(module: str, remedy: str, required: bool = True) -> Finding | None:
    """Return why a module does not import, or None if it does."""
    logging.disable(logging.INFO)  # fairseq recommends packages that it does without
    try:
        importlib.import_module(module)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        return Finding(module, f"does not import ({reason})", remedy, required)
    finally:
        logging.disable(logging.NOTSET)
    return None


def check_versions() -> Iterator[Finding]:
    """Compare installed versions with the package's metadata, those of extras if they are there."""
    if failure := _try_import("packaging.requirements", "pip install packaging"):
        yield failure
        return
    from packaging.requirements import Requirement

    try:
        about = metadata.metadata("fairseq_ext")
    except metadata.PackageNotFoundError:
        remedy = f"{INSTALL} --editable {PACKAGE.parent}"
        yield Finding("Python", platform.python_version())
        yield Finding("fairseq_ext", "not installed, so versions cannot be checked", remedy)
        for name in ("torch", "numpy", "fairseq-fixed", "sacrebleu"):
            yield _check_installed(Requirement(name), "")
        return
    requires = Requirement(f"Python{about['Requires-Python'] or ''}").specifier
    yield _compare("Python", platform.python_version(), requires, f"use Python {requires}", True)
    extras = ["", *(about.get_all("Provides-Extra") or [])]
    for requirement in map(Requirement, metadata.requires("fairseq_ext") or []):
        marker = requirement.marker
        matching = (each for each in extras if not marker or marker.evaluate({"extra": each}))
        if (extra := next(matching, None)) is not None:
            found = _check_installed(requirement, extra)
            if found.required or found.state != MISSING:
                yield found


def _check_installed(requirement: Any, extra: str) -> Finding:
    name = f"{requirement.name} ({extra})" if extra else requirement.name
    remedy = f"{INSTALL} '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(name, MISSING, remedy, required=not extra)
    return _compare(name, version, requirement.specifier, remedy, required=not extra)


def _compare(name: str, version: str, specifier: Any, remedy: str, required: bool) -> Finding:
    if specifier.contains(version, prereleases=True):
        return Finding(name, version)
    return Finding(name, f"{version} is not {specifier}", remedy, required)


def check_devices() -> Iterator[Finding]:
    """Report CPUs and GPUs, and what slows them or makes them unsafe."""
    if failure := _try_import("torch", f"{INSTALL} torch"):
        yield failure
        return
    import torch

    cores = len(os.sched_getaffinity(0))
    slow = not (torch.cuda.is_available() or "OMP_NUM_THREADS" in os.environ)
    remedy = "export OMP_NUM_THREADS=1 if other work shares the CPU, which can stall more threads"
    threads = f"{cores} cores, {torch.get_num_threads()} threads in torch"
    yield Finding("CPU", threads, remedy if slow else "")
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        remedy = "take torch 2.10 or newer for checkpoints that you do not trust"
        yield Finding("torch", f"{torch.__version__} reads files unsafely (CVE-2026-24747)", remedy)
    yield from _check_gpus(torch.cuda)


def _check_gpus(cuda: Any) -> Iterator[Finding]:
    for index in range(cuda.device_count()):
        gpu = cuda.get_device_properties(index)
        size = f"{gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        yield Finding(f"GPU {index}", f"{gpu.name}, {size}", _find_slow_attention(index))
    if cuda.device_count():
        return
    if shutil.which("nvidia-smi"):
        remedy = "install a CUDA build of torch that fits its driver (pytorch.org)"
        yield Finding("GPU", "there is one that torch cannot use", remedy)
    else:
        yield Finding("GPU", "none")


def _find_slow_attention(index: int) -> str:
    """Return why a GPU cannot run our kernels; empty if it can, or if they cannot be asked."""
    try:
        import torch

        from fairseq_ext.mechanisms.kernels.triton_launch import find_problem
    except ImportError:  # which another check reports
        return ""
    problem = find_problem(torch.device("cuda", index))
    return problem and f"doubly-normalised and guided attention could be quicker: {problem}"


def check_fairseq() -> Iterator[Finding]:
    """Import fairseq and its compiled parts."""
    for module, use in FAIRSEQ.items():
        yield _try_import(module, REBUILD) or Finding(module, f"imports (for {use})")


def check_torchaudio() -> Iterator[Finding]:
    """Import torchaudio, which fairseq asks for and nothing needs, if it is installed."""
    try:
        version = metadata.version("torchaudio")
    except metadata.PackageNotFoundError:
        return
    remedy = "pip uninstall torchaudio: nothing here needs it, and transformers fails with it"
    yield _try_import("torchaudio", remedy, required=False) or Finding("torchaudio", version)


def check_plugin() -> Iterator[Finding]:
    """Import this package, which registers its architectures and patches fairseq."""
    if failure := _try_import("fairseq_ext.registry", "mend what is wrong above"):
        yield failure
        return
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_ext.patches import PATCHES

    modules = [cls.__module__ for cls in ARCH_MODEL_REGISTRY.values()]
    ours = sum(module.startswith("fairseq_ext.") for module in modules)
    yield Finding("--user-dir", str(PACKAGE))
    yield Finding("plugin", f"{ours} architectures, {len(PATCHES)} patches for fairseq")


def check_package(folder: Path) -> Iterator[Finding]:
    """Report import paths of earlier versions in the files of a user's package.

    Raises:
        UsageError: there is no such folder.
    """
    from fairseq_ext.errors import UsageError
    from fairseq_ext.tools.old_names import find_old_names

    if not folder.is_dir():
        raise UsageError(f"--user-dir is {folder}, and there is no such folder; give a package's")
    for file in sorted(folder.rglob("*.py")):
        try:
            for line, old, new in find_old_names(file):
                yield Finding(f"{file}:{line}", f"{old} has moved", f"import {new}")
        except (SyntaxError, ValueError) as error:
            yield Finding(str(file), f"is no Python ({error})", "correct it, or take it out")
    yield Finding("your package", f"{folder} was read for import paths of earlier versions")


CHECKS = (check_versions, check_devices, check_fairseq, check_torchaudio, check_plugin)

if __name__ == "__main__":
    sys.path[0] = str(PACKAGE.parent)
    run(argparse.Namespace(package=None, path=False))
