"""What is looked into: a checkpoint's model, its text as tokens, and its attention maps.

Translation models and RoBERTa-style ones (pre-trained, imported or fine-tuned) of the plugin, and
those of fairseq itself, which are read as `transformer_una` and `roberta_una_12`.
"""

import argparse
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import set_torch_seed
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.analysis.loading import load, short_name
from fairseq_ext.analysis.tokens import Words, of_pieces, of_text, splitter
from fairseq_ext.attention import Attention, AttentionRecorder
from fairseq_ext.data.vocabulary import Vocabulary
from fairseq_ext.errors import UsageError
from fairseq_ext.guidance.patterns import View
from fairseq_ext.models.transformer import TransformerModel
from fairseq_ext.roles.pieces import PIECE_READERS, are_numeric, detect_mark
from fairseq_ext.tasks.replaced_tokens import ReplacedTokenDetectionTask

SITES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}

MAX_TOKENS = 2048  # of a batch


class Subject:
    """A model in evaluation, on the CPU.

    Args:
        checkpoint: a file of fairseq-train or `fairseq-ext import-hf`.
        data: folder with dictionaries, merges or a tokeniser, and splits; by default the one that
            the checkpoint names.
        untrained: with random parameters, those that training began with unless it began with an
            encoder's.
        seed: which ones (default: the training's).

    Attributes:
        name: of the architecture, as the checkpoint has it. title: what pictures call it.

    Raises:
        UsageError: there is no such file, it is no model of these kinds, or data are missing.
    """

    def __init__(
        self,
        checkpoint: Path,
        data: Path | None = None,
        *,
        untrained: bool = False,
        seed: int | None = None,
    ) -> None:
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        self.checkpoint = checkpoint
        self.name, self.model, self.task, cfg = load(checkpoint, data)
        self.title = f"{self.name}, {short_name(checkpoint)}"
        if untrained:
            set_torch_seed(cfg.common.seed if seed is None else seed)
            self.model = self.task.build_model(cfg.model).eval()
            self.title += ", untrained"
        self.data = Path(self.task.cfg.data.split(":")[0])
        self.criterion = cfg.criterion
        self.source = self.task.source_dictionary
        self.translates = isinstance(self.model, TransformerModel)

    @cached_property
    def heads(self) -> dict[str, dict[int, int]]:
        """site -> layer -> how many heads it has."""
        found: dict[str, dict[int, int]] = {site: {} for site in SITES}
        for name, module in self.model.named_modules():
            if isinstance(module, Attention) and not name.startswith("task_head."):
                found[module.site][module.layer] = module.num_heads
        return {site: layers for site, layers in found.items() if layers}

    @property
    def positions(self) -> int:
        """Tokens of a source sentence, at most."""
        most = self.model.max_positions()
        return most[0] if isinstance(most, tuple) else most

    def listen(self, batch: Mapping[str, Any], hear: Callable[["Heard"], None]) -> Any:
        """Hand the maps of a batch to `hear`, layer by layer; what the model says of the batch."""
        inputs = {name: value for name, value in batch["net_input"].items() if value is not None}
        views = self._views(inputs)

        def heard(site: str, layer: int, maps: Tensor) -> None:
            hear(Heard(site, layer, maps, views[site]))

        if not self.translates:
            inputs["features_only"] = True  # a fine-tuned encoder has no other output
        with torch.no_grad():
            return self.model(**inputs, recorder=_Tap(self.heads, heard))

    def maps(self, batch: Mapping[str, Any]) -> dict[str, dict[int, Tensor]]:
        """site -> layer -> [B, H, T, S], the maps of a batch."""
        found: dict[str, dict[int, Tensor]] = {}
        self.listen(batch, lambda at: found.setdefault(at.site, {}).update({at.layer: at.maps}))
        return {site: found[site] for site in SITES if site in found}

    def _views(self, inputs: Mapping[str, Tensor]) -> dict[str, View]:
        source = inputs["src_tokens"]
        real = source.ne(self.source.pad())
        views = {"encoder": View(source, real, real)}
        if self.translates:
            target = inputs["prev_output_tokens"]
            known = target.ne(self.task.target_dictionary.pad())
            views["decoder"] = View(target, known, known, causal=True)
            views["cross"] = View(source, real, known)
        return views

    # Text of a split.

    def split(self, name: str) -> Any:
        """fairseq's data set; raises UsageError if there is none."""
        try:
            self.task.load_dataset(name)
        except (FileNotFoundError, AssertionError) as error:  # the latter of stock sentence tasks
            raise UsageError(
                f"there is no split {name} in {self.data}; give one of its splits"
            ) from error
        return self.task.dataset(name)

    def batches(
        self, split: str, limit: int | None = None, max_tokens: int = MAX_TOKENS
    ) -> Iterator[dict[str, Any]]:
        """All of a split, or its first `limit` sentences, with a progress bar; masked tokens are
        what they were, and sentences longer than the model reads are left out."""
        dataset = self.split(split)
        indices = dataset.ordered_indices()
        indices = indices if limit is None else indices[indices < limit]
        indices, _ = dataset.filter_indices_by_size(indices, self.model.max_positions())
        longest = max((dataset.num_tokens(index) for index in indices), default=0)
        if longest > max_tokens:
            raise UsageError(
                f"--max-tokens is {max_tokens} and {split} has sentences of {longest} tokens; give "
                "at least that"
            )
        with tqdm(total=len(indices), desc=split, unit=" sentences") as bar:
            for batch in dataset.batch_by_size(indices, max_tokens=max_tokens):
                yield self.unmasked(dataset.collater([dataset[index] for index in batch]))
                bar.update(len(batch))

    def sentence(self, split: str, index: int) -> dict[str, Any]:
        """A batch of one sentence."""
        dataset = self.split(split)
        if not 0 <= index < len(dataset):
            raise UsageError(f"--index is {index} and must be 0 to {len(dataset) - 1} in {split}")
        batch = self.unmasked(dataset.collater([dataset[index]]))
        self.check_length(batch["net_input"]["src_tokens"].size(1))
        if self.translates:
            tokens = batch["net_input"]["prev_output_tokens"].size(1)
            self.check_length(tokens, "target", self.model.max_positions()[1])
        return batch

    def first_row(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Of a batch with several rows, as a pair encoded apart has, the first without padding."""
        inputs = batch["net_input"]
        if len(inputs["src_tokens"]) == 1:
            return batch
        real = inputs["src_tokens"][0].ne(self.source.pad())
        kept = {name: each[:1][:, real] for name, each in inputs.items() if each.dim() > 1}
        return {**batch, "net_input": kept}

    def unmasked(self, batch: dict[str, Any]) -> dict[str, Any]:
        """With the words that masked language modelling hid, which are its targets."""
        if not isinstance(self.task, MaskedLMTask) or isinstance(
            self.task, ReplacedTokenDetectionTask
        ):
            return batch
        tokens, target = batch["net_input"]["src_tokens"], batch["target"]
        whole = torch.where(target.eq(self.source.pad()), tokens, target)
        return {**batch, "net_input": {**batch["net_input"], "src_tokens": whole}}

    # Text that is given.

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What makes tokens of text for an encoder."""
        inputs = self.data / "input0"  # of fairseq's own sentence tasks
        folder = inputs if inputs.is_dir() else self.data
        return getattr(self.task, "vocabulary", None) or Vocabulary.load(folder)

    @cached_property
    def _split(self) -> Callable[[str], str]:
        return splitter(self.data)

    def words(self, words: Sequence[str]) -> Words:
        """Words (tokenised, in the case of the training data) as tokens.

        Raises:
            UsageError: there are none, or more tokens than the model has positions.
        """
        if not any(word.strip() for word in words):
            raise UsageError("the sentence is empty; give at least one word")
        found = self.encode(words)
        self.check_length(len(found.numbers))
        return found

    def encode(self, words: Sequence[str], *, target: bool = False) -> Words:
        """However many they are; of the source, or those of a translation."""
        if not self.translates:
            return of_text(words, self.vocabulary, self.source)
        dictionary = self.task.target_dictionary if target else self.source
        return of_pieces(words, self._split, dictionary)

    def check_length(self, tokens: int, what: str = "sentence", most: int | None = None) -> None:
        most = self.positions if most is None else most
        if tokens > most:
            raise UsageError(
                f"the {what} has {tokens} tokens and the model takes {most}; give a shorter one"
            )

    def batch(self, source: Tensor, target: Tensor | None = None) -> dict[str, Any]:
        """One sentence of tokens [S]; of a translation model with target [T], its own (beam 5) by
        default."""
        inputs = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
        if self.translates:
            target = self.translation(source) if target is None else target
            inputs["prev_output_tokens"] = target.roll(1)[None]  # the end begins a sentence
        return {"net_input": inputs}

    def translation(self, source: Tensor) -> Tensor:
        """[T] tokens of the best translation that beam search finds."""
        pairs = self.task.build_dataset_for_inference([source], [len(source)])
        generator = self.task.build_generator([self.model], argparse.Namespace(beam=5))
        return self.task.inference_step(generator, [self.model], pairs.collater([pairs[0]]))[0][0][
            "tokens"
        ].cpu()

    # Tokens as text.

    def labels(self, batch: Mapping[str, Any], site: str) -> tuple[list[str], list[str]]:
        """Of the rows and of the columns of the first sentence's maps; in the decoder a row is the
        token that is predicted."""
        inputs = batch["net_input"]
        source = [self.label(number) for number in inputs["src_tokens"][0]]
        if site == "encoder":
            return source, source
        target = self.task.target_dictionary
        read = [target[number] for number in inputs["prev_output_tokens"][0]]
        predicted = [*read[1:], read[0]]
        return predicted, source if site == "cross" else read

    def label(self, number: int | Tensor) -> str:
        """A source token; that of a byte-level BPE as text, if numbers have their tokeniser."""
        symbol = self.source[int(number)]
        if self.by_id and symbol.isdecimal():
            symbol = self.vocabulary.tokenizer.id_to_token(int(symbol)) or symbol
        elif not self.by_bytes:
            return symbol
        text = PIECE_READERS["\u0120"](symbol).text.decode(errors="replace")
        return f"\u2581{text}" if symbol.startswith("\u0120") else text

    @cached_property
    def by_bytes(self) -> bool:
        """Symbols are the tokens of a byte-level BPE, as of an imported RoBERTa."""
        known = self.source.symbols[self.source.nspecial :]
        return not self.translates and detect_mark(known) == "\u0120"

    @cached_property
    def by_id(self) -> bool:
        """Symbols are the numbers of a tokeniser's tokens."""
        if self.translates or not are_numeric(self.source.symbols[self.source.nspecial :]):
            return False
        try:
            return self.vocabulary.by_id
        except UsageError:  # numbers are shown where nobody knows what they mean
            return False


class Heard(NamedTuple):
    """The maps [B, H, T, S] of a layer, float32, and what their rows and columns are."""

    site: str
    layer: int
    maps: Tensor
    view: View


class _Tap(AttentionRecorder):
    """Hands maps on instead of keeping them, so that one layer's are in memory at a time."""

    def __init__(self, heads: Mapping[str, Mapping[int, int]], hear: Callable) -> None:
        super().__init__(lambda site, layer: range(heads[site][layer]), detach=True)
        self._hear = hear

    def record(self, site: str, layer: int, maps: Tensor) -> None:
        self._hear(site, layer, maps)
