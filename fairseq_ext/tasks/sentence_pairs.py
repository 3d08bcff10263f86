"""The tasks "masked_lm_nsp" and "masked_lm_sop": masked LM over pairs of segments."""

from typing import Any

from fairseq.data import Dictionary, NestedDictionaryDataset, RightPadDataset
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from fairseq_ext.data.sampled import PairDataset
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import check_requirements, default_options
from fairseq_ext.tasks.plain_text import check_criterion, load_dictionary, load_lines

HEAD = "sentence_pair"
BLOCK_OPTIONS = ("sample_break_mode", "shorten_method", "shorten_data_split_list", "d2v2_multi")
"""Options of masked LM that have no effect on pairs."""


class SentencePairTask(MaskedLMTask):
    """Masked LM of pairs, <s> first </s> second </s>, with a label: the second belongs there.

    Attributes:
        kind: "nsp" or "sop", see :class:`PairDataset`.
        segments: how many segments the model has to tell apart.
    """

    kind: str
    segments = 2
    load_dict = staticmethod(load_dictionary)

    def __init__(self, cfg: Any, dictionary: Any = None) -> None:
        super().__init__(cfg, dictionary)
        values = {"task": f"masked_lm_{self.kind}", **{name: cfg[name] for name in BLOCK_OPTIONS}}
        requirements = dict.fromkeys(BLOCK_OPTIONS, (["task"], ["masked_lm"]))
        check_requirements(values, default_options(MaskedLMConfig), {}, requirements)

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; raise UsageError for the criterion of another task."""
        check_criterion(f"masked_lm_{self.kind}", getattr(cfg, "_name", ""))
        return super().build_criterion(cfg, from_checkpoint)

    def build_model(self, model_cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, with a head that classifies pairs."""
        model = super().build_model(model_cfg, from_checkpoint)
        segments = getattr(getattr(model, "args", None), "segments", 0)
        if segments < self.segments:
            raise UsageError(
                f"--task masked_lm_{self.kind} makes pairs of segments, and this model has "
                f"embeddings for {segments}; give --segments 2, with an --arch like roberta_una_8"
            )
        model.register_classification_head(HEAD, num_classes=2)
        return model

    def _load_dataset_split(self, split: str, epoch: int, combine: bool) -> PairDataset:
        path, lines = load_lines(self, split, epoch, combine)
        words: Dictionary = self.source_dictionary
        self.pairs = PairDataset(  # `load_dataset` calls `_regular_dataset` next
            lines,
            kind=self.kind,
            room=self.cfg.tokens_per_sample,
            bos=words.bos(),
            eos=words.eos(),
            seed=self.cfg.seed,
            name=path,
        )
        return self.pairs

    def _regular_dataset(self, src_dataset: Any, target_dataset: Any) -> NestedDictionaryDataset:
        masked = super()._regular_dataset(src_dataset, target_dataset)
        more = {
            "net_input.segments": RightPadDataset(self.pairs.part("segments"), pad_idx=0),
            "pair": self.pairs.part("label"),
        }
        return NestedDictionaryDataset({**masked.defn, **more}, sizes=masked.sizes)


for _kind in ("nsp", "sop"):
    _class = type(f"MaskedLm{_kind.capitalize()}Task", (SentencePairTask,), {"kind": _kind})
    register_task(f"masked_lm_{_kind}", dataclass=MaskedLMConfig)(_class)
