"""Checks of all flags of a command, or of a whole configuration, before anything is read."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_ext.bounds import check_regular
from fairseq_ext.commands.option_pairs import check_pairs
from fairseq_ext.commands.overrides import TEXTS
from fairseq_ext.commands.ranges import check_number
from fairseq_ext.errors import UsageError
from fairseq_ext.suggestions import suggest

MISSING = "???"  # value of a setting that has to be given
LAST = "checkpoint_last.pt"  # default of --restore-file, in --save-dir


class Setting(NamedTuple):
    """One setting of a command.

    Attributes:
        given: how it is given: a flag, or a key of a configuration.
        names: its name with that of its part, as in "encoder_layers", and alone.
        value: what it is.
    """

    given: str
    names: tuple[str, ...]
    value: Any


def check_flags(args: Namespace) -> None:
    """Raise UsageError if flags of a command line have values that mean nothing, or lack one."""
    check_needed(args)
    check_settings([Setting(to_flag(name), (name,), value) for name, value in vars(args).items()])


def check_needed(args: Namespace) -> None:
    """Raise UsageError if a part that is chosen by its name needs a flag that is not given."""
    from fairseq.registry import REGISTRIES

    for part, registry in REGISTRIES.items():
        name = getattr(args, part, None)
        config = registry["dataclass_registry"].get(name)
        for field in fields(config) if config else ():
            if field.default == MISSING and getattr(args, field.name, None) in (None, MISSING):
                raise UsageError(f"{to_flag(part)} {name} needs {to_flag(field.name)}; give it too")


def check_configuration(cfg: Any) -> None:
    """Raise UsageError if a configuration of a training has values that mean nothing.

    fairseq-train has one too, which it makes of its flags.
    """
    check_names(cfg)
    by_hydra = is_hydra()
    check_settings(
        [
            setting if by_hydra else setting._replace(given=to_flag(setting.names[0]))
            for setting in _walk(cfg)
        ]
    )
    if cfg.get("checkpoint") is not None:
        check_checkpoints(cfg.checkpoint, by_hydra)


def is_hydra() -> bool:
    """Tell whether this command has a configuration of hydra, and not flags."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.initialized() or "hydra" in Path(sys.argv[0]).name


def to_flag(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def check_settings(settings: list[Setting]) -> None:
    """Raise UsageError if a setting is out of range, or does not suit another."""
    for given, names, value in settings:
        if names[-1] in TEXTS:
            TEXTS[names[-1]](given, value)
        else:
            check_number(given, value, *names)
    check_pairs({names[0]: (given, value) for given, names, value in settings})


def _walk(cfg: Any, *path: str) -> Iterator[Setting]:
    for name, value in _list_values(cfg):
        if isinstance(value, Mapping | Namespace):
            yield from _walk(value, *path, name)
        elif name == "_name" and len(path) == 1:
            yield Setting(f"{path[0]}._name", path, value)
        else:
            names = "_".join((*path[1:], name)), name
            yield Setting(".".join((*path, name)), names, value)


def _list_values(cfg: Any) -> list[tuple[str, Any]]:
    """Return names and values, without those that are missing or refer to others."""
    from omegaconf import OmegaConf

    if isinstance(cfg, Namespace):
        return list(vars(cfg).items())
    left_out = OmegaConf.is_missing, OmegaConf.is_interpolation
    return [(name, cfg[name]) for name in cfg if not any(test(cfg, name) for test in left_out)]


def check_names(cfg: Any) -> None:
    """Raise UsageError for a part of a configuration with an unknown name or unknown keys."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    known = {"model": {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}, "task": TASK_REGISTRY}
    known |= {name: registry["registry"] for name, registry in REGISTRIES.items()}
    for part, names in known.items():
        if (chosen := cfg.get(part)) is not None:
            check_name(f"{part}._name", getattr(chosen, "_name", chosen), names)
    task = cfg.get("task")
    if task is not None and getattr(task, "data", "") is None:
        raise UsageError("task.data is not given; give a folder that fairseq-preprocess made")
    for field in fields(FairseqConfig):
        if is_dataclass(field.default) and cfg.get(field.name):
            keys = [each.name for each in fields(field.default)]
            for key in set(cfg[field.name]).difference(keys):
                check_name(f"a key of {field.name}", key, keys)


def check_name(given: str, name: Any, known: Any) -> None:
    """Raise UsageError for an unknown name, with those that are like it."""
    if name not in known:
        advice = suggest(name, known, "give a name that fairseq or the package of --user-dir has")
        raise UsageError(f"{given} is {name!r}, which nothing has registered; {advice}")


def check_checkpoints(cfg: Any, by_hydra: bool) -> None:
    """Raise UsageError if the checkpoint that a training begins from is not there."""
    from fairseq.file_io import PathManager

    first = not Path(cfg.save_dir, LAST).exists()
    wanted = {"restore_file": cfg.restore_file != LAST}
    wanted |= dict.fromkeys(("continue_once", "finetune_from_model"), first)
    sharded = getattr(cfg, "checkpoint_suffix", "")  # then each process has a file of its own
    for name in (name for name, is_wanted in wanted.items() if is_wanted and not sharded):
        path = cfg.get(name)
        if path is None or PathManager.path_requires_pathmanager(path) or Path(path).is_file():
            continue
        check_regular(Path(path))
        given = f"checkpoint.{name}" if by_hydra else to_flag(name)
        problem = "is a folder" if Path(path).is_dir() else "is not there"
        raise UsageError(
            f"{given} is {path}, which {problem} (it is not looked for in --save-dir); give the "
            "path of a checkpoint, or leave it out to begin anew"
        )
