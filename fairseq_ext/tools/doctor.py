"""Say whether fairseq can train here: versions, devices, and what is missing.

Every complaint ends with a line that mends it. The exit code is 0 if training can run and 1 if
something that it requires is missing or wrong. Where even `fairseq-ext` does not start:
python fairseq_ext/tools/doctor.py
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
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLE = """\
  fairseq-ext doctor"""

PACKAGE = Path(__file__).parent.parent

# Compiled parts of fairseq that its commands cannot do without, and what each is for.
COMPILED = {
    "fairseq.data.data_utils_fast": "batches",
    "fairseq.data.token_block_utils_fast": "language models",
    "fairseq.libbleu": "fairseq-generate",
}

INSTALL = "pip install --no-build-isolation"
REBUILD = f"{INSTALL} --no-cache-dir --no-deps --force-reinstall fairseq-fixed"


class Finding(NamedTuple):
    """With a ``remedy`` something is not right; if it is ``required`` too, nothing trains."""

    what: str
    found: str
    remedy: str = ""
    required: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""


def run(given: argparse.Namespace) -> None:
    wrong = []
    for finding in (each for check in CHECKS for each in check()):
        print(_line(finding), flush=True)
        if finding.remedy and finding.required:
            wrong.append(finding.what)
    if wrong:
        sys.exit(f"error: training cannot run before these are mended: {', '.join(wrong)}")
    print("Training can run.")


def _line(finding: Finding) -> str:
    mark = "" if not finding.remedy else "WRONG" if finding.required else "note"
    line = f"{mark:5}  {finding.what:36}  {finding.found}"
    return f"{line} -> {finding.remedy}" if finding.remedy else line


def _broken(module: str, remedy: str) -> Finding | None:
    """What is wrong with a module that does not import."""
    logging.disable(logging.INFO)  # fairseq recommends packages that it does without
    try:
        importlib.import_module(module)
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        return Finding(module, f"does not import ({said})", remedy, required=True)
    finally:
        logging.disable(logging.NOTSET)
    return None


def versions() -> Iterator[Finding]:
    """What the installed metadata asks for, extras included, beside what there is."""
    if broken := _broken("packaging.requirements", "pip install packaging"):
        yield broken
        return
    from packaging.requirements import Requirement

    try:
        about = metadata.metadata("fairseq_ext")
    except metadata.PackageNotFoundError:
        remedy = f"{INSTALL} --editable {PACKAGE.parent}"
        yield Finding("Python", platform.python_version())
        yield Finding("fairseq_ext", "not installed, so versions cannot be checked", remedy)
        for name in ("torch", "numpy", "fairseq-fixed", "sacrebleu"):
            yield _installed(Requirement(name), "")
        return
    requires = Requirement(f"Python{about['Requires-Python'] or ''}").specifier
    yield _compared("Python", platform.python_version(), requires, f"use Python {requires}", True)
    extras = ["", *(about.get_all("Provides-Extra") or [])]
    for asked in map(Requirement, metadata.requires("fairseq_ext") or []):
        for extra in extras:
            if asked.marker is None or asked.marker.evaluate({"extra": extra}):
                yield _installed(asked, extra)
                break


def _installed(asked: Any, extra: str) -> Finding:
    name = f"{asked.name} ({extra})" if extra else asked.name
    remedy = f"{INSTALL} '{asked.name}{asked.specifier}'"
    try:
        found = metadata.version(asked.name)
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", remedy, required=not extra)
    return _compared(name, found, asked.specifier, remedy, required=not extra)


def _compared(name: str, found: str, asked: Any, remedy: str, required: bool) -> Finding:
    if asked.contains(found, prereleases=True):
        return Finding(name, found)
    return Finding(name, f"{found} is not {asked}", remedy, required)


def devices() -> Iterator[Finding]:
    if broken := _broken("torch", f"{INSTALL} torch"):
        yield broken
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
    yield from _gpus(torch.cuda)


def _gpus(cuda: Any) -> Iterator[Finding]:
    for index in range(cuda.device_count()):
        gpu = cuda.get_device_properties(index)
        size = f"{gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        yield Finding(f"GPU {index}", f"{gpu.name}, {size}")
    if cuda.device_count():
        if broken := _broken("triton", "pip install triton for faster attention on this GPU"):
            yield broken._replace(required=False)
    elif shutil.which("nvidia-smi"):
        remedy = "install a CUDA build of torch that fits its driver (pytorch.org)"
        yield Finding("GPU", "there is one that torch cannot use", remedy)
    else:
        yield Finding("GPU", "none")


def commands() -> Iterator[Finding]:
    """fairseq and its compiled parts."""
    for module, use in {"fairseq": "everything", **COMPILED}.items():
        yield _broken(module, REBUILD) or Finding(module, f"imports (for {use})")


def plugin() -> Iterator[Finding]:
    if broken := _broken("fairseq_ext.registry", "mend what is wrong above"):
        yield broken
        return
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_ext.patches.compat import REMEDIES

    modules = [cls.__module__ for cls in ARCH_MODEL_REGISTRY.values()]
    ours = sum(module.startswith("fairseq_ext.") for module in modules)
    yield Finding("--user-dir", str(PACKAGE))
    yield Finding("plugin", f"{ours} architectures, {len(REMEDIES)} remedies for fairseq")


CHECKS = (versions, devices, commands, plugin)

if __name__ == "__main__":
    sys.path[0] = str(PACKAGE.parent)
    run(argparse.Namespace())
