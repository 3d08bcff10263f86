"""Model cards: the page of an exported model, from its checkpoint and a record of its scores."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.record import find_commit
from fairseq_ext.evaluation.recorded import NEEDED, PROVENANCE, read_record
from fairseq_ext.evaluation.runs import count_parameters, flatten_settings, get_architecture
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.pretrained import saved_options

PIPELINES = {
    "ForConditionalGeneration": "translation",
    "ForCausalLM": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "MTModel": "translation",
    "Model": "feature-extraction",
}
"""End of the name of a class -> what the model is for, as Hugging Face calls it."""

SETTINGS = {
    "task": "task._name",
    "criterion": "criterion._name",
    "optimizer": "optimizer._name",
    "learning rate": "optimization.lr",
    "schedule": "lr_scheduler._name",
    "warm-up": "lr_scheduler.warmup_updates",
    "tokens per batch": "dataset.max_tokens",
    "sentences per batch": "dataset.batch_size",
    "batches per update": "optimization.update_freq",
    "seed": "common.seed",
}
"""Row of a card -> setting of fairseq's."""

REMARKS = {
    "WhitespaceSplit": "The tokeniser splits text at spaces, as `fairseq-interactive` does: give "
    "tokens or pieces as the training data has them.",
    "MarianMTModel": "Positions are fairseq's, not Marian's. Sources are padded on the right. "
    "`save_pretrained` leaves the positions out, unless `model._keys_to_ignore_on_save` is set to "
    "`None` before.",
}
"""The kind of a tokeniser, or the name of a class -> what its user has to know."""


def read_results(path: Path | None) -> Mapping[str, Any]:
    """Return a record, or nothing of None; raise UsageError for a record without results."""
    record = read_record(path) if path else {}
    if record and (missing := [name for name in NEEDED if not record.get(name)]):
        raise UsageError(
            f"{path} has no {missing[0]}, so that a card cannot show its results; give a record of "
            "'fairseq-ext record'"
        )
    return record


def write_card(
    saved: Mapping[str, Any], config: Mapping[str, Any], record: Mapping[str, Any], file: Path
) -> None:
    """Write the card of a model.

    Args:
        saved: its checkpoint.
        config: config.json.
        record: its results, if there are any.
        file: README.md, beside the other files of the model.
    """
    tokenizer = file.with_name("tokenizer.json")
    content = json.loads(tokenizer.read_text("utf-8")) if tokenizer.exists() else {}
    kind = (content.get("pre_tokenizer") or {}).get("type")
    lines = _list_lines(saved, config, record, kind)
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _list_lines(
    saved: Mapping[str, Any],
    config: Mapping[str, Any],
    record: Mapping[str, Any],
    tokenizer: str | None,
) -> Iterator[str]:
    [name] = config["architectures"]
    ends = [end for end in PIPELINES if name.endswith(end)]
    yield from ("---", "library_name: transformers", f"pipeline_tag: {PIPELINES[ends[0]]}")
    options, task = saved_options(saved), saved_options(saved, "task")
    languages = config.get("langs") or [task.get("source_lang"), task.get("target_lang")]
    if all(languages):
        yield f"language: [{', '.join(languages)}]"
    architecture = get_architecture(options)
    yield from ("tags: [fairseq]", "---", "", f"# {architecture}", "")
    commit = find_commit()
    at = f" (commit {commit})" if commit else ""
    yield f"`{name}`, trained with fairseq and exported by fairseq_ext{at}."
    for remark in (REMARKS[what] for what in (name, tokenizer) if what in REMARKS):
        yield from ("", remark)
    yield from ("", "## Training", "", "| | |", "|---|---|")
    settings = flatten_settings(saved.get("cfg") or {})
    history = (saved.get("optimizer_history") or [{}])[-1]
    rows = {
        "data": task.get("data"),
        "parameters": f"{count_parameters(drop_adversaries(saved['model'])):,}",
        "updates": history.get("num_updates"),
        **{row: settings.get(setting) for row, setting in SETTINGS.items()},
    }
    yield from (f"| {row} | {_show(x)} |" for row, x in rows.items() if x not in (None, "", False))
    if record:
        yield from _list_results(record)


def _list_results(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a record: scores of each run, their signatures, and where they are of."""
    measures = record["measures"]
    titles = [measures.get(column, {}).get("title", column) for column in record["columns"]]
    yield from ("", "## Results", "", _row(titles), _row(["---"] * len(titles)))
    for run in record["runs"]:
        digits = (measures.get(column, {}).get("digits") for column in record["columns"])
        yield _row([_show(x, n) for x, n in zip(run, digits, strict=True)])
    yield ""
    yield from (f"- {remark}" for remark in record.get("remarks", []))
    known = {name: record.get(name) for name in PROVENANCE}
    yield from (f"- {name}: {' '.join(str(x).split())}" for name, x in known.items() if x)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _show(value: Any, digits: int | None = None) -> str:
    if isinstance(value, float) and digits is not None and math.isfinite(value):
        return f"{value:.{digits}f}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
