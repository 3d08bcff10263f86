"""Tasks on plain text: replaced token detection, and masked LM over pairs of segments.

Data are checked for fairseq's own "masked_lm" too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import data, utils
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from fairseq_ext.attention.options import SHARE, Rule, check_rules, option, read_rules, real
from fairseq_ext.data.binarised import check_files, describe_subsets
from fairseq_ext.data.sampled import PairDataset, ReplacedDataset
from fairseq_ext.errors import UsageError
from fairseq_ext.models import config

REPLACED = "replaced_token_detection"  # the task, its criterion and its head
PAIRS = "sentence_pair"  # the head of tasks on pairs

# "cross_entropy" is fairseq's default.
GENERAL_CRITERIONS = ("cross_entropy", "label_smoothed_cross_entropy", "adaptive_loss")

BLOCKS = ("sample_break_mode", "shorten_method", "shorten_data_split_list")
"""Options of masked LM that make blocks of text."""

UNUSED = (*BLOCKS, "d2v2_multi")
"""Options of masked LM that have no effect on pairs."""


@dataclass
@config.help_from_docstring
class GeneratorOptions:
    """Options of the replacement of tokens.

    Attributes:
        replace_prob: share of the tokens that are drawn anew from the unigram distribution of the
            dictionary (ELECTRA's; the attention guidance paper gives none)
        generator_size: size of a learned generator, as a share of the heads and feed-forward width
            of the model (ELECTRA's: 0.25), which predicts --replace-prob masked tokens and is
            trained with the model; 0: none, tokens are sampled from the unigram distribution
    """

    replace_prob: float = option(0.15, real("(0, 1]", "a share that is not nothing"))
    generator_size: float = option(
        0.0,
        SHARE,
        excludes=Rule(
            "replace_prob",
            "{one} needs tokens that are not masked, and {other} masks all; give less",
            lambda size, share: size and share == 1,
        ),
    )


_NAMES = ("data", "tokens_per_sample", "seed", *BLOCKS)
_OPTIONS = [each for each in config.list_options(MaskedLMConfig) if each[0] in _NAMES]
ReplacedTokenDetectionConfig = config.flat_config(
    "ReplacedTokenDetectionConfig",
    [*_OPTIONS, *config.list_options(GeneratorOptions)],
)


def find_split(task: Any, split: str, epoch: int) -> str:
    """Return the path of a split, without its ending.

    If the data are several folders, each epoch has its own.

    Raises:
        UsageError: there is no such split, or nothing in it.
    """
    folders = utils.split_paths(task.cfg.data)
    path = Path(folders[(epoch - 1) % len(folders)]) / split
    index, text = Path(f"{path}.idx"), Path(f"{path}.bin")
    if not check_files(str(path)):
        raise UsageError(
            f"{index} is not there: {describe_subsets(path.parent)}; give one of these, "
            "or binarise text with fairseq-preprocess "
            "--only-source or scripts/prepare_mlm.sh"
        )
    if not text.stat().st_size:
        raise UsageError(
            f"{index} has no text; binarise some with fairseq-preprocess --only-source, or "
            "scripts/prepare_mlm.sh"
        )
    return str(path)


class PlainTextTask(MaskedLMTask):
    """A task of ours on binarised plain text.

    Attributes:
        objective: its name, with which those of its criterions begin.
    """

    objective: str

    @classmethod
    def load_dict(cls, cfg: Any) -> data.Dictionary:
        """Return the dictionary of the data.

        Raises:
            UsageError: it is not there, or has no <mask>, which fairseq would add silently.
        """
        path = Path(utils.split_paths(cfg.data)[0]) / "dict.txt"
        if not path.exists():
            raise UsageError(f"{path} is not there; give a folder that fairseq-preprocess wrote")
        dictionary = data.Dictionary.load(str(path))
        if "<mask>" not in dictionary:
            raise UsageError(f"{path} has no <mask>; add the line '<mask> 0' at its end")
        return dictionary

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; raise UsageError for the criterion of another task on text."""
        task, name = self.objective, getattr(cfg, "_name", "")
        other = name.startswith(("masked_lm", REPLACED)) and not name.startswith(task)
        if other or name.startswith(GENERAL_CRITERIONS):
            raise UsageError(
                f"--criterion {name} is not for --task {task}; give --criterion {task} or {task}_ag"
            )
        return super().build_criterion(cfg, from_checkpoint)


@register_task(REPLACED, dataclass=ReplacedTokenDetectionConfig)
class ReplacedTokenDetectionTask(PlainTextTask):
    """The detection of replaced tokens in blocks of text, made as for --task masked_lm.

    It is ELECTRA's discriminator with a unigram generator, or a learned one (--generator-size).

    Raises:
        UsageError: --replace-prob leaves no tokens to a generator, or the model has no heads for
            tokens.
    """

    objective = REPLACED

    def __init__(self, cfg: Any, dictionary: Any = None) -> None:
        super().__init__(cfg, dictionary)
        check_rules(config.as_mapping(cfg), read_rules(ReplacedTokenDetectionConfig))

    def build_model(self, model_cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, with a head that scores each token, and its generator."""
        model = super().build_model(model_cfg, from_checkpoint)
        if not hasattr(model, "register_token_head"):
            raise UsageError(
                f"--task {REPLACED} needs a model with heads for tokens; give --arch roberta_una_8"
            )
        model.register_token_head(REPLACED, 1)
        model.encoder.freeze_lm_head()
        if self.cfg.generator_size:
            model.register_generator(self.cfg.generator_size)
        return model

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **_: Any) -> None:
        """Load a split: "net_input" and "target" [B, S].

        The target is 1 for replaced tokens or, for a generator, what masks hide.
        """
        blocks = self._load_dataset_split(split, epoch, combine)
        words, seed = self.source_dictionary, self.cfg.seed
        tokens, target, padding = self._corrupt(blocks)
        parts = {
            "id": data.IdDataset(),
            "net_input": {
                "src_tokens": data.RightPadDataset(tokens, pad_idx=words.pad()),
                "src_lengths": data.NumelDataset(tokens, reduce=False),
            },
            "target": data.RightPadDataset(target, pad_idx=padding),
            "nsentences": data.NumSamplesDataset(),
            "ntokens": data.NumelDataset(tokens, reduce=True),
        }
        order = [np.random.default_rng(seed).permutation(len(blocks)), blocks.sizes]
        examples = data.NestedDictionaryDataset(parts, sizes=[blocks.sizes])
        self.datasets[split] = data.SortDataset(examples, sort_order=order)

    def _corrupt(self, blocks: Any) -> tuple[Any, Any, int]:
        """Return data sets of the tokens and targets of blocks, and the padding of targets."""
        words, seed, share = self.source_dictionary, self.cfg.seed, self.cfg.replace_prob
        if not self.cfg.generator_size:
            replaced = ReplacedDataset(blocks, words, share=share, seed=seed)
            return replaced, replaced.part("labels"), 0
        masked, hidden = data.MaskTokensDataset.apply_mask(
            blocks,
            words,
            pad_idx=words.pad(),
            mask_idx=self.mask_idx,
            seed=seed,
            mask_prob=share,
            leave_unmasked_prob=0.0,
            random_token_prob=0.0,
        )
        return masked, hidden, words.pad()


class SentencePairTask(PlainTextTask):
    """Masked LM of pairs, <s> first </s> second </s>, with a label: the second belongs there.

    Attributes:
        kind: "nsp" or "sop", see :class:`PairDataset`.
        segments: how many segments the model has to tell apart.
    """

    kind: str
    segments = 2

    def __init__(self, cfg: Any, dictionary: Any = None) -> None:
        super().__init__(cfg, dictionary)
        values = {"task": self.objective, **{name: cfg[name] for name in UNUSED}}
        requirements = dict.fromkeys(UNUSED, (["task"], ["masked_lm"]))
        config.check_requirements(values, config.default_options(MaskedLMConfig), {}, requirements)

    def build_model(self, model_cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, with a head that classifies pairs."""
        model = super().build_model(model_cfg, from_checkpoint)
        segments = getattr(getattr(model, "args", None), "segments", 0)
        if segments < self.segments:
            raise UsageError(
                f"--task {self.objective} makes pairs of segments, and this model has "
                f"embeddings for {segments}; give --segments 2, with an --arch like roberta_una_8"
            )
        model.register_classification_head(PAIRS, num_classes=2)
        return model

    def _load_dataset_split(self, split: str, epoch: int, combine: bool) -> PairDataset:
        path, words = find_split(self, split, epoch), self.source_dictionary
        self.pairs = PairDataset(  # `load_dataset` calls `_regular_dataset` next
            data.data_utils.load_indexed_dataset(path, words, combine=combine),
            kind=self.kind,
            room=self.cfg.tokens_per_sample,
            bos=words.bos(),
            eos=words.eos(),
            seed=self.cfg.seed,
            name=path,
        )
        return self.pairs

    def _regular_dataset(self, src_dataset: Any, target_dataset: Any) -> Any:
        masked = super()._regular_dataset(src_dataset, target_dataset)
        more = {
            "net_input.segments": data.RightPadDataset(self.pairs.part("segments"), pad_idx=0),
            "pair": self.pairs.part("label"),
        }
        return data.NestedDictionaryDataset({**masked.defn, **more}, sizes=masked.sizes)


for _kind in ("nsp", "sop"):
    _name = f"masked_lm_{_kind}"
    _class_name = f"MaskedLm{_kind.capitalize()}Task"
    _class = type(_class_name, (SentencePairTask,), {"kind": _kind, "objective": _name})
    register_task(_name, dataclass=MaskedLMConfig)(_class)
