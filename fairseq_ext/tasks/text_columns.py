"""Labelled text as lines of text, of which each task reads columns separated by tabs."""

from collections.abc import Iterable, Iterator

from fairseq_ext.data.examples import Example, Values
from fairseq_ext.errors import UsageError
from fairseq_ext.tasks.labelled_task import LabelledTask
from fairseq_ext.tasks.multiple_choice import MultipleChoiceTask
from fairseq_ext.tasks.sentences import SentenceTask
from fairseq_ext.tasks.sequence_tagging import SequenceTaggingTask
from fairseq_ext.tasks.span_extraction import SpanExtractionTask

Lines = Iterable[tuple[str, str]]
"""Lines of text, each after its place: "FILE:LINE"."""

COLUMNS: dict[type[LabelledTask], str] = {
    SentenceTask: "one or two sentences",
    SequenceTaggingTask: "one column of words separated by spaces",
    MultipleChoiceTask: "passage, question (maybe empty) and choices",
    SpanExtractionTask: "passage and question",
}
"""The columns of a line by task, for `parse_text`'s error message."""


def parse_text(task: LabelledTask, lines: Lines) -> Iterator[Example]:
    """Yield the examples in lines of text; raise UsageError for a wrong number of columns."""
    for where, line in lines:
        parts = line.split("\t")
        values = name_columns(task, parts)
        if values is None:
            columns = next(text for kind, text in COLUMNS.items() if isinstance(task, kind))
            raise UsageError(f"{where} has {len(parts)} columns; give {columns}, separated by tabs")
        yield Example(values, where)


def name_columns(task: LabelledTask, parts: list[str]) -> Values | None:
    """Return the fields of an example from the columns of a line; None if their number is wrong."""
    match task, parts:
        case SentenceTask(), [text]:
            return {"text": text}
        case SentenceTask(), [text, pair]:
            return {"text": text, "pair": pair}
        case SequenceTaggingTask(), [text]:
            return {"words": text.split(" ")}
        case MultipleChoiceTask(), [text, question, *choices]:
            return {"text": text, "question": question, "choices": choices}
        case SpanExtractionTask(), [text, question]:
            return {"text": text, "question": question}
    return None
