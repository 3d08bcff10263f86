"""A checkpoint under analysis: its model, the text it reads, and its attention maps.

The models are translation models and RoBERTa-style encoders (pre-trained, imported or fine-tuned)
of this plugin, and those of fairseq itself, which are read as `transformer_una` and
`roberta_una_12`.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import set_torch_seed
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from fairseq_ext.analysis.head_weights import HeadWeight, read_attention
from fairseq_ext.analysis.loading import describe_sizes, load, short_name
from fairseq_ext.analysis.recording import SITES, LayerRecorder, Receiver
from fairseq_ext.analysis.tokens import TokenCodec, TokenisedWords
from fairseq_ext.attention import Attention
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.guidance.patterns import View
from fairseq_ext.models.config import to_dict
from fairseq_ext.models.transformer import TransformerModel
from fairseq_ext.tasks.plain_text import ReplacedTokenDetectionTask

MAX_TOKENS = 2048  # in a batch


def list_own_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model, without those of a task's head or of ELECTRA's generator."""
    return [
        module
        for name, module in model.named_modules()
        if not name.startswith(("task_head.", "generator."))
    ]


class ModelInspector:
    """A checkpoint's model in evaluation mode on the CPU, with its task and text.

    Args:
        checkpoint: a file that fairseq-train or `fairseq-ext import-hf` wrote.
        data: folder with dictionaries, merges or a tokeniser, and splits; by default the one that
            the checkpoint names.
        untrained: use random parameters, as at the start of the training (unless it started from
            another encoder's parameters).
        seed: seed of the random parameters; by default the training's.

    Attributes:
        name: the architecture, as the checkpoint names it.
        title: the model's name in pictures.
        codec: conversion between words and tokens.
        source: the source dictionary.
        translates: whether this is a translation model.
        options: those of the model.

    Raises:
        UsageError: there is no such file, it holds no model of these kinds, or data are missing.
    """

    main_site = "encoder"

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
        self.name, self.model, self.task, config = load(checkpoint, data)
        self.title = f"{describe_sizes(self.name, config.model)}, {short_name(checkpoint)}"
        if untrained:
            set_torch_seed(config.common.seed if seed is None else seed)
            self.model = self.task.build_model(config.model).eval()
            self.title += ", untrained"
        self.data = Path(self.task.cfg.data.split(":")[0])
        self.criterion, self.options = config.criterion, to_dict(config.model)
        self.translates = isinstance(self.model, TransformerModel)
        self.codec = TokenCodec(self.task, self.data, self.translates)
        self.source = self.codec.source

    @cached_property
    def heads(self) -> dict[str, dict[int, int]]:
        """The number of heads by site and layer."""
        heads: dict[str, dict[int, int]] = {site: {} for site in SITES}
        for module in list_own_modules(self.model):
            if isinstance(module, Attention) and module.num_heads:
                heads[module.site][module.layer] = module.num_heads
        return {site: layers for site, layers in heads.items() if layers}

    def head_weights(self) -> Iterator[HeadWeight]:
        """Yield the trained weights of heads."""
        for module in list_own_modules(self.model):
            if isinstance(module, Attention):
                yield from read_attention(module)

    @property
    def max_positions(self) -> int:
        """The greatest number of tokens in a source sentence."""
        positions = self.model.max_positions()
        return positions[0] if isinstance(positions, tuple) else positions

    def record_attention(self, batch: Mapping[str, Any], receive: Receiver) -> Any:
        """Run the model on a batch and hand the maps of each layer to `receive`.

        Only one layer's maps are in memory at a time.

        Returns:
            The model's output; features [B, T, C] and extra output for an encoder.
        """
        inputs = {name: value for name, value in batch["net_input"].items() if value is not None}
        recorder = LayerRecorder(self.heads, self._views(inputs), receive)
        if not self.translates:
            inputs["features_only"] = True  # the output that fine-tuned encoders have, too
        with torch.no_grad():
            return self.model(**inputs, recorder=recorder)

    def maps(self, batch: Mapping[str, Any]) -> dict[str, dict[int, Tensor]]:
        """Return the maps [B, H, T, S] of a batch by site and layer."""
        maps: dict[str, dict[int, Tensor]] = {}
        self.record_attention(
            batch, lambda layer: maps.setdefault(layer.site, {}).update({layer.layer: layer.maps})
        )
        return {site: maps[site] for site in SITES if site in maps}

    def _views(self, inputs: Mapping[str, Tensor]) -> dict[str, View]:
        source = inputs["src_tokens"]
        real = source.ne(self.source.pad())
        views = {"encoder": View(source, real, real)}
        if self.translates:
            target = inputs["prev_output_tokens"]
            real_target = target.ne(self.task.target_dictionary.pad())
            views["decoder"] = View(target, real_target, real_target, causal=True)
            views["cross"] = View(source, real, real_target)
        return views

    def load_split(self, name: str) -> Any:
        """Return fairseq's data set of a split; raise UsageError if there is none."""
        try:
            self.task.load_dataset(name)
        except AssertionError as error:  # of stock sentence tasks
            raise UsageError(
                f"there is no split {name} in {self.data}; give one of its splits"
            ) from error
        return self.task.dataset(name)

    def batches(
        self, split: str, limit: int | None = None, max_tokens: int = MAX_TOKENS
    ) -> Iterator[dict[str, Any]]:
        """Yield the batches of a split, or of its first `limit` sentences, with a progress bar.

        Masked tokens are restored. Sentences longer than the model reads are left out.

        Raises:
            UsageError: a sentence has more than `max_tokens` tokens.
        """
        dataset = self.load_split(split)
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
                yield self.unmask(dataset.collater([dataset[index] for index in batch]))
                bar.update(len(batch))

    def load_sentence(self, split: str, index: int) -> dict[str, Any]:
        """Return a batch with one sentence of a split.

        Raises:
            UsageError: there is no such split or sentence, or the model reads fewer tokens.
        """
        dataset = self.load_split(split)
        if not 0 <= index < len(dataset):
            raise UsageError(f"--index is {index} and must be 0 to {len(dataset) - 1} in {split}")
        batch = self.unmask(dataset.collater([dataset[index]]))
        _check_length("sentence", batch["net_input"]["src_tokens"].size(1), self.max_positions)
        if self.translates:
            tokens = batch["net_input"]["prev_output_tokens"].size(1)
            _check_length("target", tokens, self.model.max_positions()[1])
        return batch

    def keep_first_row(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the first row of a batch without its padding; a pair encoded apart has two."""
        inputs = batch["net_input"]
        if len(inputs["src_tokens"]) == 1:
            return batch
        real = inputs["src_tokens"][0].ne(self.source.pad())
        first = {name: each[:1][:, real] for name, each in inputs.items() if each.dim() > 1}
        return {**batch, "net_input": first}

    def unmask(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with the words that masked language modelling hid in its source."""
        if not isinstance(self.task, MaskedLMTask):
            return batch
        if isinstance(self.task, ReplacedTokenDetectionTask) and not self.task.cfg.generator_size:
            return batch  # nothing is hidden: the target says which words are replaced
        tokens, target = batch["net_input"]["src_tokens"], batch["target"]
        restored = torch.where(target.eq(self.source.pad()), tokens, target)
        return {**batch, "net_input": {**batch["net_input"], "src_tokens": restored}}

    def words(self, words: Sequence[str]) -> TokenisedWords:
        """Return words (tokenised, in the case of the training data) as tokens.

        Raises:
            UsageError: there are no words, or more tokens than the model has positions.
        """
        if not any(word.strip() for word in words):
            raise UsageError("the sentence is empty; give at least one word")
        encoded = self.codec.encode(words)
        _check_length("sentence", len(encoded.numbers), self.max_positions)
        return encoded

    def batch(self, source: Tensor, target: Tensor | None = None) -> dict[str, Any]:
        """Return a batch with one sentence of tokens [S].

        A translation model also reads a target [T], by default its own translation (beam 5).
        """
        if self.translates and target is None:
            target = self.translate(source)
        return self.collate([source], None if target is None else [target])

    def collate(
        self, sources: Sequence[Tensor], targets: Sequence[Tensor] | None = None
    ) -> dict[str, Any]:
        """Return sentences of tokens [S], padded on the right, as a batch.

        A translation model also reads targets [T]. The default, the end of a sentence alone, is
        enough for the maps of its encoder.
        """
        inputs: dict[str, Any] = {
            "src_tokens": _pad(sources, self.source.pad()),
            "src_lengths": torch.tensor([len(source) for source in sources]),
        }
        if self.translates:
            dictionary = self.task.target_dictionary
            targets = targets or [torch.tensor([dictionary.eos()])] * len(sources)
            shifted = [target.roll(1) for target in targets]  # fairseq begins with the end symbol
            inputs["prev_output_tokens"] = _pad(shifted, dictionary.pad())
        return {"net_input": inputs}

    def translate(self, source: Tensor) -> Tensor:
        """Return the tokens [T] of the best translation that beam search (beam 5) finds."""
        pairs = self.task.build_dataset_for_inference([source], [len(source)])
        generator = self.task.build_generator([self.model], argparse.Namespace(beam=5))
        sample = pairs.collater([pairs[0]])
        return self.task.inference_step(generator, [self.model], sample)[0][0]["tokens"].cpu()

    def label_axes(self, batch: Mapping[str, Any], site: str) -> tuple[list[str], list[str]]:
        """Return the tokens at the rows and at the columns of the first sentence's maps.

        In the decoder a row is labelled with the token that it predicts.
        """
        inputs = batch["net_input"]
        source = [self.codec.label(number) for number in inputs["src_tokens"][0]]
        if site == "encoder":
            return source, source
        dictionary = self.task.target_dictionary
        target = [dictionary[number] for number in inputs["prev_output_tokens"][0]]
        predicted = [*target[1:], target[0]]
        return predicted, source if site == "cross" else target


def _check_length(name: str, tokens: int, positions: int) -> None:
    if tokens > positions:
        raise UsageError(
            f"the {name} has {tokens} tokens and the model takes {positions}; give a shorter one"
        )


def _pad(sentences: Sequence[Tensor], padding: int) -> Tensor:
    return pad_sequence(list(sentences), batch_first=True, padding_value=padding)
