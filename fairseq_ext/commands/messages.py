"""Patches of errors: one sentence instead of a traceback where a user can mend the fault."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_ext import errors
from fairseq_ext.commands.configurations import is_hydra, to_flag
from fairseq_ext.errors import to_line
from fairseq_ext.wrapping import FULL_KEY, as_usage_error, replace, wrap

REFUSALS = {
    ("fairseq.search:LexicallyConstrainedBeamSearch", "init_constraints"): (
        "'NoneType'",
        "--constraints is given and this command reads none; give it to fairseq-interactive, "
        "whose input has them after tabs",
    ),
    ("fairseq.sequence_scorer:SequenceScorer", "generate"): (
        "'target'",
        "--score-reference needs text with references, which fairseq-interactive does not read; "
        "leave it out, or give it to fairseq-generate",
    ),
    ("fairseq.utils", "get_tpu_device"): (
        "'NoneType'",
        "--tpu needs the package torch_xla, which is not installed; leave it out",
    ),
    ("fairseq.data.encoders.nltk_tokenizer:NLTKTokenizer", "encode"): (
        "\n***",
        "--tokenizer nltk needs data that are not installed; run 'python -m nltk.downloader "
        "punkt_tab', or give another --tokenizer",
    ),
    ("fairseq.data.encoders.sentencepiece_bpe:SentencepieceBPE", "__init__"): (
        "",
        "--sentencepiece-model cannot be read ({reason}); give the model that split the training "
        "text, such as sentencepiece.model in the folder of data",
    ),
    ("fairseq.data.encoders.subword_nmt_bpe:SubwordNMTBPE", "__init__"): (
        "",
        "--bpe-codes cannot be read ({reason}); give the merges that split the training text, such "
        "as bpe.codes in the folder of data",
    ),
    ("fairseq.quantization_utils", "quantize_model_scalar"): (
        "<class",
        "--quant-noise-scalar quantises plain linear maps, embeddings and convolutions, and this "
        "model has {reason}; leave it out",
    ),
    ("fairseq.dataclass.utils", "merge_with_parent"): (
        "Key '",
        "{reason}; correct that key of the configuration, or leave it out",
    ),
}
"""Owner and name of a function -> the start of its exception's text, and our sentence instead."""


def refuse_plainly() -> None:
    """Turn the exceptions of `REFUSALS`, and masked LM data without text, into a UsageError.

    Fault: Errors of usage end in a traceback.
    Asked: all users; loud; messages.
    Since: always.
    Until: fairseq prints a sentence for them.
    """
    for function, refusal in REFUSALS.items():
        wrap(*function, _wrapper(*refusal))

    def load(original: Callable, task: Any, split: str, epoch: int, combine: bool) -> Any:
        from fairseq_ext.tasks.plain_text import find_split

        find_split(task, split, epoch)
        return original(task, split, epoch, combine)

    wrap("fairseq.tasks.masked_lm:MaskedLMTask", "_load_dataset_split", load)
    errors.explanations.append(explain)
    # hydra asks for HYDRA_FULL_ERROR when a command fails; without it prints a traceback of its own
    replace(["hydra._internal.utils"], "_is_env_set", lambda name: True)


ENDS = (
    (
        r"(?i)(gloo|nccl|store).*((closed|reset) by|broken pipe|remote process|was likely closed)",
        errors.LOST,
    ),
    (
        r"DataLoader worker \(pid\S* [\d, ]+\) (exited unexpectedly|is killed by signal: [\w ]+)",
        "a process that reads data has ended ({}), perhaps for want of memory; run the same "
        "command again, with a smaller --num-workers",
    ),
)
"""Start of what is said of a process that another one waited for, and our sentence instead."""


FOR_USERS = re.compile(r"(?<!\S)--[a-z]|\bplease\b", re.I)
RAISES = re.compile(r"(raise|assert)\b|\)")
FORESEEN = (AssertionError, Exception, NotImplementedError, RuntimeError, ValueError)
SHOW = f"{errors.TRACEBACK}=1"
CONFIGURATION = {"hydra", "omegaconf", "yaml"}  # packages
FAIRSEQ = {"fairseq", "fairseq_cli"}


def explain(error: BaseException) -> str | None:
    """Return a sentence for an error of a configuration, or of fairseq if it is meant for users.

    Messages that fairseq writes for its users name a flag or say please, or stand in a line that
    raises an exception with words of fairseq's own. What a model asserts without words is shown.
    """
    for pattern, sentence in ENDS:
        if isinstance(error, RuntimeError) and (found := re.search(pattern, str(error))):
            return sentence.format(found[1])
    steps = traceback.extract_tb(error.__traceback__)
    packages = set(Path(steps[-1].filename).parts) if steps else set()
    packages |= {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    if not packages.isdisjoint(CONFIGURATION):
        return _describe_setting(error)
    if packages.isdisjoint(FAIRSEQ):
        return None
    if isinstance(error, FileExistsError):  # which has its path alone
        return f"{to_line(error)} is there already; delete it, or give another folder"
    if FOR_USERS.search(str(error)):
        return to_line(error)
    line = (steps[-1].line or "") if steps else ""
    said = isinstance(error, AssertionError) or RAISES.match(line)
    if type(error) in FORESEEN and said and " " in str(error).strip():
        return f"{to_line(error)}; correct the options or the data ({SHOW} shows where)"
    if isinstance(error, AssertionError) and not str(error) and steps[-1].name == "build_model":
        asked = line.removeprefix("assert").replace("args.", "")
        return f"fairseq's model needs {asked.strip()}; correct its options ({SHOW} shows where)"
    return None


def _describe_setting(error: BaseException) -> str:
    """Return a sentence for a setting: a key of a configuration, or a flag."""
    key = str(getattr(error, "full_key", None) or "").rpartition(".")[2]
    if is_hydra() or not key:
        return f"{_describe_key(error)}; correct that key of the configuration, or leave it out"
    if type(error).__name__ == "MissingMandatoryValue":
        return f"{to_flag(key)} is not given, and needed; give it"
    return f"{to_flag(key)}: {_describe_key(error)}; correct that flag, or leave it out"


def _describe_key(error: BaseException) -> str:
    """Return the reason of an error of a configuration, with the key if it lacks that."""
    causes = [str(error), str(error.__cause__ or "")]
    reason = to_line(" ".join(cause.split(FULL_KEY)[0].strip() for cause in causes))
    key = re.search(r"full_key: (\S+)", " ".join(causes))
    return f"{key[1]}: {reason}" if key and key[1].rpartition(".")[2] not in reason else reason


def _wrapper(start: str, sentence: str) -> Callable:
    def call(original: Callable, *args: Any, **kwargs: Any) -> Any:
        argument = next((a for a in args if isinstance(a, str | list)), "")
        with as_usage_error(start, sentence, argument):
            return original(*args, **kwargs)

    return call
