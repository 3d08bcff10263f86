"""Annotations on disk: for each token its word, the head of this word and their relation.

A folder has values.npy, int16 [tokens, 3] of all sentences, one after another without their ends;
offsets.npy, int64 [sentences + 1], where each begins; and about.json, with their
checksum. A sentence without annotations has NO_WORD, NO_WORD, 0 for each token.
"""

import hashlib
import json
import logging
import zlib
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

from fairseq_ext.bounds import MOST_BYTES, check_regular
from fairseq_ext.data.arrays import reason_of
from fairseq_ext.data.conllu import Sentence
from fairseq_ext.data.files_in_use import FilesInUse
from fairseq_ext.data.vocabulary import digest
from fairseq_ext.errors import UsageError
from fairseq_ext.files import ARRAY_ERRORS, new_folder
from fairseq_ext.mechanisms.roles.role_masks import EXACT, MAJOR, NO_PARSE, NO_WORD

logger = logging.getLogger(__name__)

VERSION = 1
MOST = np.iinfo(np.int16).max  # words of a sentence
RELATIONS = {"nsubj", "obj", "dobj", "amod", "advmod"}
FILES, CHECKSUM = ("values", "offsets"), "crc32"
CHUNK = 1 << 24  # bytes
AGAIN = "make it again with fairseq-ext annotate"


@cache
def bits(relation: str) -> int:
    """Return MAJOR for a major relation or its subtype, with EXACT for one without a subtype."""
    major = relation.partition(":")[0] in RELATIONS or relation == "nsubjpass"
    return MAJOR * major | EXACT * (relation in RELATIONS)


def blank(count: int) -> np.ndarray:
    """Return the record [count, 3] of a sentence without annotations."""
    return np.tile(np.array(NO_PARSE, np.int16), (count, 1))


def record(places: Sequence[int], sentence: Sentence) -> np.ndarray:
    """Return the record [n, 3] of a sentence of n tokens.

    A word in which no token begins counts as part of the word before it. Such a group has the head
    of its first word whose head lies outside.

    Args:
        places: index of each token's word.
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


def write(
    folder: Path, records: Iterable[np.ndarray], symbols: Iterable[str], parser: str
) -> dict[str, Any]:
    """Write a folder with one record for each sentence; it gets its name when it is complete.

    Args:
        symbols: symbols of the dictionary of the text.
        parser: source of the annotations, as text.

    Returns:
        The content of about.json.

    Raises:
        Unfinished: it cannot be written.
    """
    with new_folder(folder, replace=True) as part:
        about = _fill(part, records)
        about = {"version": VERSION, **about, "dictionary": _fingerprint(symbols), "parser": parser}
        about |= {CHECKSUM: _checksum(part)}
        (part / "about.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return about


def _checksum(folder: Path) -> str:
    """Return the checksum of the values and offsets in a folder, by CRC-32: 1 GB a second."""
    checksum = 0
    for name in FILES:
        with (folder / f"{name}.npy").open("rb") as file:
            while part := file.read(CHUNK):
                checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"


def _fill(part: Path, records: Iterable[np.ndarray]) -> dict[str, Any]:
    offsets, unannotated = array("q", [0]), 0
    with (part / "values.npy").open("wb") as file:
        _write_header(file, 0)
        for found in records:
            file.write(np.ascontiguousarray(found, np.int16).tobytes())
            offsets.append(offsets[-1] + len(found))
            unannotated += len(found) > 0 and bool(found[0, 0] == NO_WORD)
        file.seek(0)
        _write_header(file, offsets[-1])
    np.save(part / "offsets.npy", np.array(offsets))
    return {
        "sentences": len(offsets) - 1,
        "tokens": offsets[-1],
        "unannotated": unannotated,
        "lengths": _hash_lengths(np.diff(offsets)),
    }


def _write_header(file: BinaryIO, tokens: int) -> None:
    """Write the header of values.npy; numpy leaves room in it, so that its length never changes."""
    head = {"descr": np.dtype(np.int16).str, "fortran_order": False, "shape": (tokens, 3)}
    np.lib.format.write_array_header_1_0(file, head)


def _hash_lengths(lengths: Sequence[int] | np.ndarray) -> str:
    return hashlib.sha256(np.asarray(lengths, np.int64).tobytes()).hexdigest()


def _fingerprint(symbols: Iterable[str]) -> str:
    """Return the fingerprint of a dictionary without <mask>, which some tasks add."""
    return digest(symbol for symbol in symbols if symbol != "<mask>")


@cache
def _note_unchecked(folder: Path) -> None:
    logger.info("%s has no checksum, as older versions wrote it, and was not checked", folder)


class Annotations:
    """Records of a folder, memory-mapped: int16 [n, 3] for each sentence.

    Raises:
        UsageError: a file cannot be read, or they do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        try:
            check_regular(folder / "about.json", MOST_BYTES)
            about = json.loads((folder / "about.json").read_text("utf-8"))
            if about["version"] != VERSION:
                raise ValueError(f"of version {about['version']}, not {VERSION}")
            self.values, self.offsets = (
                np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in FILES
            )
            shapes = (about["tokens"], 3), (about["sentences"] + 1,)
            types = self.values.dtype, self.offsets.dtype
            if (self.values.shape, self.offsets.shape) != shapes or types != (np.int16, np.int64):
                raise ValueError("its files do not belong together")
            self.files_in_use = FilesInUse(*(folder / f"{name}.npy" for name in FILES))
            self.dictionary, self.lengths = about["dictionary"], about["lengths"]
            if about.setdefault(CHECKSUM) is None:
                _note_unchecked(folder)
            elif about[CHECKSUM] != _checksum(folder):
                raise ValueError("its files are not those that were written: damaged or foreign")
        except (OSError, KeyError, TypeError, RecursionError, *ARRAY_ERRORS) as error:
            raise UsageError(f"{folder} cannot be read ({reason_of(error)}); {AGAIN}") from None

    @classmethod
    def open(cls, folder: Path, symbols: Iterable[str], lengths: Sequence[int]) -> "Annotations":
        """Open the annotations of a text.

        Args:
            symbols: symbols of the dictionary of the text.
            lengths: number of tokens of each sentence, without <s> and </s>.

        Raises:
            UsageError: they are missing, cannot be read, or belong to another text or dictionary.
        """
        if not folder.is_dir():
            raise UsageError(f"there is no {folder}; make it with fairseq-ext annotate")
        found = cls(folder)
        if found.dictionary != _fingerprint(symbols):
            raise UsageError(f"{folder} was made with another dictionary than this; {AGAIN}")
        if found.lengths != _hash_lengths(lengths):
            raise UsageError(
                f"{folder} is of other sentences ({len(found)} with {len(found.values)} "
                f"tokens; here are {len(lengths)} with {np.sum(lengths)}); {AGAIN}"
            )
        return found

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        self.files_in_use.check()
        first, last = self.offsets[index], self.offsets[index + 1]
        return np.array(self.values[first:last])


class Annotated(BaseWrapperDataset):
    """Data set whose batches have the annotations of their sentences as an input of the model.

    Args:
        records: annotations of the sentences that the data set is made of.
        places: [N] which of these each item is; by default item n is sentence n.
        first: number of tokens before the sentence in each row.
    """

    def __init__(
        self,
        dataset: FairseqDataset,
        records: Annotations,
        pad: int,
        *,
        places: np.ndarray | None = None,
        first: int = 0,
    ) -> None:
        super().__init__(dataset)
        self.records, self.pad, self.first = records, pad, first
        self.places = np.arange(len(dataset)) if places is None else places

    def collater(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the data set's batch with "annotations" [B, S, 3] in "net_input"."""
        batch = self.dataset.collater(samples)
        if batch:
            inputs = batch["net_input"]
            rows = [self.records[self.places[number]] for number in batch["id"].tolist()]
            inputs["annotations"] = self._placed(inputs["src_tokens"], rows)
        return batch

    def _placed(self, tokens: Tensor, rows: Sequence[np.ndarray]) -> Tensor:
        """Put each record [n, 3] where its tokens stand, cut as the sentence is cut."""
        placed = torch.tensor(NO_PARSE).expand(*tokens.shape, -1).clone()
        real = tokens != self.pad
        begins, counts = real.int().argmax(1).tolist(), real.sum(1).tolist()
        for row, record, begin, count in zip(placed, rows, begins, counts, strict=True):
            kept = min(len(record), count - self.first - 1)
            begin += self.first
            row[begin : begin + kept] = torch.from_numpy(record[:kept].astype(np.int64))
        return placed
