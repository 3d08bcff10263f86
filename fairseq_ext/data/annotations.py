"""Annotations on disk: of each token its word, the word that this depends on, and how.

A folder has values.npy, int16 [tokens, 3] of all sentences, one after another without their ends;
offsets.npy, int64 [sentences + 1], where each begins; and about.json. What belongs to a sentence
without annotations is NO_WORD, NO_WORD, 0.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_ext.data.conllu import Sentence
from fairseq_ext.data.vocabulary import digest
from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.roles.role_masks import EXACT, MAJOR, NO_PARSE, NO_WORD

VERSION = 1
MOST = np.iinfo(np.int16).max  # words of a sentence
RELATIONS = {"nsubj", "obj", "dobj", "amod", "advmod"}
AGAIN = "make it again with fairseq-ext annotate"


@cache
def bits(relation: str) -> int:
    """MAJOR: it, or what it is a subtype of, is a major relation; EXACT: it is one itself."""
    major = relation.partition(":")[0] in RELATIONS or relation == "nsubjpass"
    return MAJOR * major | EXACT * (relation in RELATIONS)


def blank(count: int) -> np.ndarray:
    """Of a sentence without annotations."""
    return np.tile(np.array(NO_PARSE, np.int16), (count, 1))


def record(places: Sequence[int], sentence: Sentence) -> np.ndarray:
    """[n, 3] of a sentence's n tokens.

    A word in which no token begins is one with the word before. Such words depend on what the
    first of them that depends on another depends on.

    Args:
        places: of each token's word.
    """
    begun = set(places)
    owners: list[int] = []
    for word in range(len(sentence.words)):
        owners.append(word if word in begun or not word else owners[-1])
    found: dict[int, tuple[int, int, int]] = {}
    for owner, head, relation in zip(owners, sentence.heads, sentence.relations, strict=True):
        head = head if head == NO_WORD else owners[head]
        if head == owner:
            continue
        own = found.setdefault(owner, (owner, head, 0))
        if own[1] == head:
            found[owner] = owner, head, own[2] | bits(relation)
    return np.array([found[place] for place in places], np.int16).reshape(-1, 3)


class _Array:
    """An array that is written to a file row by row."""

    def __init__(self, path: Path, dtype: type, row: tuple[int, ...]) -> None:
        self.file, self.dtype, self.row, self.count = path.open("wb"), np.dtype(dtype), row, 0
        self._head()

    def _head(self) -> None:
        """Its length does not depend on the number of rows: numpy leaves room for it to grow."""
        descr = np.lib.format.dtype_to_descr(self.dtype)
        shape = (self.count, *self.row)
        head = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, head)

    def append(self, rows: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(rows, self.dtype).tobytes())
        self.count += len(rows)

    def close(self) -> None:
        self.file.seek(0)
        self._head()
        self.file.close()


def write(
    folder: Path, records: Iterable[np.ndarray], symbols: Iterable[str], parser: str
) -> dict[str, Any]:
    """Make a folder of one record for each sentence, or replace it; it is there only when complete.

    Args:
        symbols: those of the dictionary of the text.
        parser: what the annotations come from.

    Returns:
        What about.json says.

    Raises:
        Unfinished: it cannot be written.
    """
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        about = _fill(part, records)
        about = {"version": VERSION, **about, "dictionary": _of(symbols), "parser": parser}
        (part / "about.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        _replace(part, folder)
    except OSError as error:
        raise Unfinished(
            f"{folder} cannot be written ({error.strerror}); make room and run the same command "
            "again"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return about


def _fill(part: Path, records: Iterable[np.ndarray]) -> dict[str, Any]:
    values = _Array(part / "values.npy", np.int16, (3,))
    offsets = _Array(part / "offsets.npy", np.int64, ())
    lengths, unannotated = hashlib.sha256(), 0
    offsets.append(np.zeros(1))
    for found in records:
        values.append(found)
        offsets.append(np.array([values.count]))
        lengths.update(np.int64(len(found)).tobytes())
        unannotated += len(found) > 0 and bool(found[0, 0] == NO_WORD)
    values.close()
    offsets.close()
    return {
        "sentences": offsets.count - 1,
        "tokens": values.count,
        "unannotated": unannotated,
        "lengths": lengths.hexdigest(),
    }


def _replace(part: Path, folder: Path) -> None:
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    part.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def _of(symbols: Iterable[str]) -> str:
    """Some tasks add <mask> to a dictionary."""
    return digest(symbol for symbol in symbols if symbol != "<mask>")


class Annotations:
    """The records of a folder, mapped to memory: int16 [n, 3] of each sentence."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        self.values, self.offsets = values, offsets

    @classmethod
    def open(cls, folder: Path, symbols: Iterable[str], lengths: Sequence[int]) -> "Annotations":
        """Those of a text with this dictionary.

        Args:
            lengths: the number of tokens of each sentence, without its ends.

        Raises:
            UsageError: there are none, they cannot be read, or they are of another text.
        """
        if not folder.is_dir():
            raise UsageError(
                f"there are no annotations {folder}; make them with fairseq-ext annotate"
            )
        about, found = _read(folder)
        if about["dictionary"] != _of(symbols):
            raise UsageError(f"{folder} was made with another dictionary than this; {AGAIN}")
        lengths = np.asarray(lengths, np.int64)
        if about["lengths"] != hashlib.sha256(lengths.tobytes()).hexdigest():
            raise UsageError(
                f"{folder} is of other sentences ({about['sentences']} with {about['tokens']} "
                f"tokens; here are {len(lengths)} with {lengths.sum()}); {AGAIN}"
            )
        return found

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        first, last = self.offsets[index], self.offsets[index + 1]
        return np.array(self.values[first:last])


def _read(folder: Path) -> tuple[dict[str, Any], Annotations]:
    try:
        about = json.loads((folder / "about.json").read_text("utf-8"))
        values, offsets = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in ("values", "offsets")
        )
        if about["version"] != VERSION:
            raise ValueError(f"of version {about['version']}, not {VERSION}")
        shapes = (about["tokens"], 3), (about["sentences"] + 1,)
        if (values.shape, offsets.shape) != shapes:
            raise ValueError("its files do not belong together")
        about["dictionary"], about["lengths"]  # noqa: B018 (a KeyError here is none later)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"{folder} cannot be read ({reason}); {AGAIN}") from None
    return about, Annotations(values, offsets)
