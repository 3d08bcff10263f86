"""Patches of how checkpoints are copied, read and unpacked."""

import os
import sys
import tarfile
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from fairseq_ext.bounds import check_regular, check_unpacked
from fairseq_ext.errors import UsageError
from fairseq_ext.files import rename_when_complete
from fairseq_ext.wrapping import replace, wrap, wrapper_of

Examine = Callable[[str, dict[str, Any]], None]

_examiners: list[Examine] = []


@wrapper_of("fairseq.file_io:PathManager", "copy")
def copy_whole(original: Callable, source: str, target: str, overwrite: bool = False) -> Any:
    """Copy a checkpoint to a temporary name, then give it its final one.

    Fault: checkpoint_last.pt is copied under its final name: a kill leaves a part.
    Asked: who is interrupted; loses the last checkpoint; none.
    Since: fairseq 0.7.
    Until: fairseq copies to a temporary name.
    """
    from fairseq.file_io import PathManager

    if PathManager.path_requires_pathmanager(target):
        return original(source, target, overwrite)
    with rename_when_complete(Path(target), keep_link=False) as part:
        return original(source, str(part), True)


@wrapper_of("fairseq.checkpoint_utils", "torch_persistent_save")
def save_whole(original: Callable, state: Any, name: str, async_write: bool = False) -> None:
    """Save a checkpoint under a hidden name, then give it its final one.

    Fault: On a full disk torch.save is tried three times, and what was written stays.
    Asked: whose disk is full; leaves broken files; none.
    Since: fairseq 0.12.
    Until: torch_persistent_save removes what is incomplete.
    """
    import torch
    from fairseq.file_io import PathManager

    if async_write or not PathManager.supports_rename(name):
        original(state, name, async_write)
        return
    with rename_when_complete(Path(name), keep_link=False) as part, part.open("wb") as file:
        torch.save(state, file)


@wrapper_of("fairseq.checkpoint_utils", "verify_checkpoint_directory")
def try_folder_safely(original: Callable, folder: str) -> None:
    """Try whether --save-dir can be written by a file whose name nobody can foretell.

    Fault: A file "dummy" in --save-dir is deleted, or the target of such a link emptied.
    Asked: who continues a stranger's training; silent, loses a file; none.
    Since: fairseq 0.6.
    Until: verify_checkpoint_directory uses tempfile.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(
            f"cannot write checkpoints to {folder} ({error}); choose another --save-dir"
        ) from None


def load_safely() -> None:
    """Give fairseq a `torch.load` that builds nothing but an explicit list of types.

    Fault: A checkpoint is a pickle, which can run code.
    Asked: who loads a stranger's checkpoint; silent; none.
    Since: always.
    Until: fairseq loads with weights_only.
    """
    from fairseq_ext import safe_loading

    for module, loader in safe_loading.LOADERS.items():
        replace([module], "torch", safe_loading.SafeTorch(loader))


def parse_settings() -> None:
    """Give fairseq an `eval` that reads literals only.

    Fault: Models eval settings that are saved in a checkpoint.
    Asked: who loads a stranger's checkpoint; silent; none.
    Since: always.
    Until: fairseq reads them as literals.
    """
    import fairseq  # noqa: F401  (imports every model, task and criterion)

    from fairseq_ext import safe_loading

    # some modules have a second name in sys.modules
    modules = {module.__name__ for key, module in sys.modules.items() if key.startswith("fairseq.")}
    replace(sorted(modules), "eval", safe_loading.parse_literal)


def unpack_safely() -> None:
    """Unpack archives inside their folder, or not at all.

    Fault: from_pretrained unpacks an archive wherever its paths lead, however large.
    Asked: who loads a stranger's archive; silent; none.
    Since: always.
    Until: fairseq filters the members.
    """

    def keep_inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        if member.name.startswith("/"):  # fairseq would then move the named file itself
            raise tarfile.AbsolutePathError(member)
        return tarfile.data_filter(member, folder)

    class SafeTar(tarfile.TarFile):
        extraction_filter = staticmethod(keep_inside)

        def extractall(self, *args: Any, **kwargs: Any) -> None:
            size = 0
            for member in self:
                size += member.size
                check_unpacked(str(self.name), Path(str(self.name)).stat().st_size, size)
            super().extractall(*args, **kwargs)

    replace(["fairseq.file_utils"], "tarfile", types.SimpleNamespace(open=SafeTar.open))


@wrapper_of("fairseq.checkpoint_utils", "overwrite_args_by_name")
def override_model_name(original: Callable, cfg: Any, overrides: dict[str, Any]) -> None:
    """Set an overridden `_name` in the configuration of the model alone.

    Fault: An override of _name is given to the task too.
    Asked: who gives --model-overrides; loud; none.
    Since: fairseq 0.12.
    Until: overwrite_args_by_name sets it in the model.
    """
    from omegaconf import open_dict

    original(cfg, {key: value for key, value in overrides.items() if key != "_name"})
    if "_name" in overrides:
        with open_dict(cfg):
            cfg.model._name = overrides["_name"]


@contextmanager
def examining(examine: Examine) -> Iterator[None]:
    """Call `examine` with the path and content of each checkpoint that fairseq reads meanwhile."""
    _examiners.append(examine)
    try:
        yield
    finally:
        _examiners.remove(examine)


def check_models() -> None:
    """Name the checkpoint that cannot be loaded, or that was trained on another text, and why.

    Fault: A checkpoint that fits neither settings nor data ends in a traceback, or, with another
        dictionary of equal size, in nonsense.
    Asked: who loads a checkpoint; partly silent; none.
    Since: always.
    Until: load_model_ensemble_and_task compares both.
    """
    from fairseq_ext.data.fingerprints import check_fingerprints
    from fairseq_ext.models.compilation import check_model
    from fairseq_ext.models.origins import check_origins

    def read(original: Callable, path: str, *args: Any, **kwargs: Any) -> Any:
        check_regular(Path(path))
        try:
            state = original(path, *args, **kwargs)
        except (KeyError, IndexError, TypeError, AttributeError) as error:  # of its upgrade
            raise UsageError(
                f"{path} is no whole checkpoint: {type(error).__name__} {error}, in what fairseq "
                "reads of older ones; give one that fairseq-train saved"
            ) from error
        for examine in _examiners:
            examine(path, state)
        if not _examiners:  # a training that is restored has its own options
            check_origins(path, state)
        return state

    def load(original: Callable, files: list[str], *args: Any, **kwargs: Any) -> Any:
        if folder := next(filter(os.path.isdir, files), None):
            raise UsageError(
                f"{folder} is a folder; give a checkpoint in it, such as checkpoint_best.pt"
            )
        given = signature(original).bind(files, *args, **kwargs).arguments
        saved = [(files[0], given["state"].get("extra_state"))] if given.get("state") else []

        def examine(path: str, state: dict[str, Any]) -> None:
            check_origins(path, state)
            saved.append((path, state.get("extra_state")))
            if given.get("task") is not None:  # before the model is built
                check_fingerprints(*saved[-1], given["task"])

        try:
            with examining(examine):
                models, cfg, task = original(files, *args, **kwargs)
        except Exception as error:
            raise explain_loading(error, ", ".join(files)) from error
        for path, extra_state in saved:
            check_fingerprints(path, extra_state, task)
        for model in models:
            check_model(model)
        return models, cfg, task

    wrap("fairseq.checkpoint_utils", "load_checkpoint_to_cpu", read)
    wrap("fairseq.checkpoint_utils", "load_model_ensemble_and_task", load)


def explain_loading(error: Exception, files: str) -> UsageError:
    """Return the error that a user sees for what the loading of models raised."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, UsageError):
        return error if files in str(error) else UsageError(f"{files}: {error}")
    if reason.startswith("Model file not found"):
        return UsageError(f"there is no checkpoint {reason.rpartition(': ')[2]}; correct its path")
    if reason.startswith("Error(s) in loading"):
        return UsageError(
            f"{files} does not fit the model that its options and this data make ({reason} ...); "
            "give the data that it was trained on, with its dictionary, and leave out "
            "--model-overrides"
        )
    if isinstance(error, FileNotFoundError):
        return UsageError(
            f"{files} needs files of its data that are not there ({reason}); give the folder where "
            "they are now, as DATA or --data"
        )
    return UsageError(
        f"{files} cannot be loaded: its settings, with this data, make no model "
        f"({type(error).__name__}: {reason}); give another checkpoint, or correct "
        "--model-overrides"
    )
