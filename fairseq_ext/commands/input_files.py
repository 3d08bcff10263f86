"""Patches of what fairseq's commands read: it is checked when it is opened, and refused by name."""

from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from typing import Any

from fairseq_ext.commands.configurations import check_name
from fairseq_ext.commands.files_beside_text import check_alignments, check_other_dictionaries
from fairseq_ext.commands.products import choose_library
from fairseq_ext.errors import UsageError
from fairseq_ext.wrapping import wrap, wrapper_of

LANGUAGES = ("source_lang", "target_lang")
PLUGIN = Path(__file__).parents[1]


@wrapper_of("fairseq.utils", "import_user_module")
def check_user_dir(original: Callable, args: Any) -> None:
    """Say which paths were tried for a --user-dir, and what it has to be.

    Fault: A --user-dir that is missing, or no package, ends in a traceback.
    Asked: all users; loud; a message.
    Since: always.
    Until: import_user_module prints a sentence.
    """
    import fairseq.utils

    given = getattr(args, "user_dir", None)
    if given == "":
        raise UsageError("--user-dir is empty; give the folder of a package, or leave it out")
    if given is not None:
        library = Path(fairseq.utils.__file__).parent
        tried = [Path(given).absolute(), library / given, library.parent / given]
        folder = next((path for path in tried if path.exists()), None)
        if folder is None:
            paths = ", ".join(map(str, dict.fromkeys(tried)))
            raise UsageError(
                f"--user-dir is {given}, which is not there (tried: {paths}); give the folder "
                f"of a package, such as {PLUGIN}"
            )
        if not folder.is_dir():
            raise UsageError(
                f"--user-dir is {given}, a file; give the folder of a package, such as {PLUGIN}"
            )
    try:
        original(args)
    except UsageError:
        raise
    except Exception as error:
        *_, (frame, line) = walk_tb(error.__traceback__)
        file = frame.f_code.co_filename
        raise UsageError(
            f"--user-dir is {given}, and its package cannot be imported: "
            f"{type(error).__name__}: {error} ({file}, line {line}); mend it"
        ) from error


def check_data() -> None:
    """Refuse folders of data, subsets, tasks and architectures that are not there.

    A model of ours that is built chooses how matrices are multiplied.

    Fault: Missing data, tasks and architectures end in a traceback. Missing alignments leave the
        loss, and folders joined by colons are read with the first one's dictionary.
    Asked: all users; partly silent; a message.
    Since: always.
    Until: fairseq prints a sentence for them.
    """
    from fairseq.tasks import TASK_REGISTRY

    wrap("fairseq.models", "build_model", _build_model)
    wrap("fairseq.tasks", "setup_task", _set_up_task)
    for task in {task for task in TASK_REGISTRY.values() if "load_dataset" in vars(task)}:
        wrap(f"{task.__module__}:{task.__qualname__}", "load_dataset", _load_dataset)


def _build_model(original: Callable, cfg: Any, *args: Any, **kwargs: Any) -> Any:
    from fairseq import models

    name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
    if name:
        known = {**models.MODEL_REGISTRY, **models.ARCH_MODEL_REGISTRY}
        check_name("the architecture", name, known)
    model = original(cfg, *args, **kwargs)
    if type(model).__module__.startswith("fairseq_ext."):
        choose_library(model)
    return model


def _set_up_task(original: Callable, cfg: Any, **kwargs: Any) -> Any:
    from fairseq import utils
    from fairseq.tasks import TASK_REGISTRY

    name = getattr(cfg, "_name", None) or getattr(cfg, "task", None)
    if name not in TASK_REGISTRY:
        raise UsageError(
            f"there is no --task {name}; give the --user-dir of the package that has it"
        )
    folders = [Path(path) for path in utils.split_paths(getattr(cfg, "data", None) or "")]
    if not kwargs.get("from_checkpoint"):  # which may hold all that the task needs
        for folder in folders:
            _check_folder(folder)
        check_other_dictionaries(folders)
    given = [getattr(cfg, language, None) for language in LANGUAGES]
    try:
        task = original(cfg, **kwargs)
    except Exception as error:
        if str(error).startswith("Could not infer language pair"):
            raise UsageError(
                f"{folders[0]} has no text in two languages, such as train.de-en.de.idx, which "
                f"--task {name} needs; give the folder of a translation, or another --task"
            ) from None
        if "'add_special_symbols'" in str(error):  # that legacy dictionaries do not take
            raise UsageError(
                f"--task {name} cannot be used, since this version of fairseq does not read "
                "its dictionaries; give another --task, such as masked_lm"
            ) from None
        raise
    used = getattr(task, "cfg", None) or cfg  # legacy tasks have none
    _check_languages(given, [getattr(used, language, None) for language in LANGUAGES])
    return task


def _load_dataset(original: Callable, task: Any, split: str, *args: Any, **kwargs: Any) -> Any:
    cfg: Any = task.cfg or getattr(task, "args", None)  # of legacy tasks
    try:
        loaded = original(task, split, *args, **kwargs)
        check_alignments(cfg, split, task.datasets.get(split))
        return loaded
    except FileNotFoundError as error:
        if not str(error).startswith("Dataset not found"):
            raise
        raise UsageError(
            f"there is no subset {split} of this --task and its languages: "
            f"{_describe_subsets_of(cfg, str(error))}; give one of these, as --train-subset, "
            "--valid-subset, --gen-subset or --split"
        ) from None
    except AssertionError as error:
        if not str(error).startswith("Source and target must contain the same number"):
            raise
        raise UsageError(
            f"the two sides of {split} in {cfg.data} have different numbers of sentences; "
            "binarise parallel text again with fairseq-preprocess"
        ) from None


def _describe_subsets_of(cfg: Any, message: str) -> str:
    """Describe the subsets in the folder that fairseq's message names in brackets."""
    from fairseq import utils

    from fairseq_ext.data.binarised import describe_subsets

    tried = Path(message.rpartition("(")[2].rstrip(")"))
    folders = list(map(Path, utils.split_paths(cfg.data)))
    return describe_subsets(next(filter(tried.is_relative_to, folders), folders[0]))


def _check_languages(given: list[str | None], used: list[str | None]) -> None:
    """Raise UsageError if fairseq took others, since one of the two was not given."""
    for language, own, other in zip(LANGUAGES, given, used, strict=True):
        if own not in (None, other):
            raise UsageError(
                f"--{language.replace('_', '-')} is {own}, and the text has "
                f"{' and '.join(map(str, used))}; give one of these, or both flags"
            )


def _check_folder(folder: Path) -> None:
    if ":/" in str(folder) or folder.is_dir():  # an address, for fairseq's PathManager
        return
    problem = "is a file" if folder.exists() else "is not there"
    tried = "" if folder.is_absolute() else f" (tried: {folder.absolute()})"
    raise UsageError(
        f"DATA is {folder}, which {problem}{tried}; give a folder, such as fairseq-preprocess or a "
        "script of scripts/ makes"
    )


@wrapper_of("fairseq.data:Dictionary", "add_from_file")
def check_dictionaries(original: Callable, dictionary: Any, file: Any) -> None:
    """Name the file and line of a dictionary that cannot be read.

    Fault: A missing or damaged dictionary ends in a traceback, mostly without its name. One without
        symbols is accepted.
    Asked: all users; partly silent; a message.
    Since: always.
    Until: Dictionary.add_from_file prints a sentence.
    """
    from fairseq_ext.data import dictionaries

    if not isinstance(file, str):
        original(dictionary, file)
        return
    path, special = Path(file), list(dictionary.symbols)
    dictionaries.check_file(path)
    try:
        original(dictionary, file)
    except Exception as error:
        raise dictionaries.explain(path, error, special) from None
    dictionaries.check_symbols(path, dictionary.symbols, len(special))


def check_binarised_text() -> None:
    """Check binarised text when it is opened, and that it stays; see `fairseq_ext.data.binarised`.

    Fault: Text that is cut, without its .bin, or of another dictionary is noticed late, or never.
        Text that changes ends in SIGBUS, or is read.
    Asked: who trains; partly silent; a message.
    Since: always.
    Until: fairseq compares .idx, .bin and dictionary.
    """
    from fairseq.data import indexed_dataset, plasma_utils

    from fairseq_ext.data.binarised import check_files, check_text
    from fairseq_ext.data.files_in_use import FilesInUse

    def infer(original: Callable, path: str) -> str | None:
        if not indexed_dataset.IndexedRawTextDataset.exists(path) and check_files(path):
            check_text(path, None)
        return original(path)

    def make(original: Callable, path: str, impl: str, *args: Any, **kwargs: Any) -> Any:
        if impl not in ("raw", "fasta") and check_files(path):
            words = kwargs.get("dictionary")
            check_text(path, None if words is None else len(words))
        return original(path, impl, *args, **kwargs)

    def exists(original: Callable, path: str, impl: str) -> bool:
        if impl not in ("raw", "fasta"):
            check_files(path)
        return original(path, impl)

    def close(original: Callable, opened: str) -> Callable:
        return lambda data: hasattr(data, opened) and original(data)

    def open_files(original: Callable, data: Any, path: str) -> None:
        original(data, path)
        data.files_in_use = FilesInUse(f"{path}.idx", f"{path}.bin")

    def read(original: Callable, data: Any, index: Any) -> Any:
        data.files_in_use.check()
        return original(data, index)

    mapped = indexed_dataset.MMapIndexedDataset
    for owner, opened in (
        (mapped, "_bin_buffer_mmap"),
        (mapped.Index, "_bin_buffer_mmap"),
        (plasma_utils.PlasmaStore, "server"),
    ):  # which could not be opened, for want of memory or of a package
        owner.__del__ = close(owner.__del__, opened)
    owners = {"MMapIndexedDataset": "_do_init", "IndexedDataset": "read_index"}
    for cls, opens in owners.items():
        wrap(f"fairseq.data.indexed_dataset:{cls}", opens, open_files)
        wrap(f"fairseq.data.indexed_dataset:{cls}", "__getitem__", read)
    wrap("fairseq.data.indexed_dataset:IndexedCachedDataset", "prefetch", read)
    wrap("fairseq.data.indexed_dataset", "infer_dataset_impl", infer)
    wrap("fairseq.data.indexed_dataset", "make_dataset", make)
    wrap("fairseq.data.indexed_dataset", "dataset_exists", exists)
