"""The task "replaced_token_detection": ELECTRA's discriminator with a unigram generator."""

from typing import Any

import numpy as np
from fairseq import data
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from fairseq_ext.data.replaced import ReplacedDataset
from fairseq_ext.errors import UsageError
from fairseq_ext.models.config import described, flat_config, list_options
from fairseq_ext.tasks.plain_text import check_criterion, load_dictionary

HEAD = "replaced_token_detection"
BLOCKS = {
    *("data", "sample_break_mode", "tokens_per_sample", "seed"),
    *("shorten_method", "shorten_data_split_list"),
}
"""Options of masked LM that make blocks of text."""

REPLACE_PROB = described(
    0.15,
    "share of the tokens that are drawn anew from the unigram distribution of the dictionary "
    "(ELECTRA's; the attention guidance paper gives none)",
)

_OPTIONS = [option for option in list_options(MaskedLMConfig) if option[0] in BLOCKS]
ReplacedTokenDetectionConfig = flat_config(
    "ReplacedTokenDetectionConfig", [*_OPTIONS, ("replace_prob", float, REPLACE_PROB)], {}
)


@register_task(HEAD, dataclass=ReplacedTokenDetectionConfig)
class ReplacedTokenDetectionTask(MaskedLMTask):
    """The detection of replaced tokens in blocks of text, made as for --task masked_lm.

    Raises:
        UsageError: --replace-prob is no share, or the model has no heads for tokens.
    """

    load_dict = staticmethod(load_dictionary)

    def __init__(self, cfg: Any, dictionary: Any = None) -> None:
        super().__init__(cfg, dictionary)
        if not 0 < cfg.replace_prob <= 1:
            raise UsageError(
                f"--replace-prob is {cfg.replace_prob:g}; give a share of the tokens above 0 and "
                "up to 1"
            )

    def build_model(self, model_cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model, with a head that scores each token."""
        model = super().build_model(model_cfg, from_checkpoint)
        if not hasattr(model, "register_token_head"):
            raise UsageError(
                f"--task {HEAD} needs a model with heads for tokens; use one of --arch "
                "roberta_una_8, roberta_dna_8, ..."
            )
        model.register_token_head(HEAD, 1)
        model.encoder.freeze_lm_head()
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the criterion; raise UsageError for the criterion of another task."""
        check_criterion(HEAD, getattr(cfg, "_name", ""))
        return super().build_criterion(cfg, from_checkpoint)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split: "net_input" and "target" [B, S], which is 1 for replaced tokens."""
        blocks = self._load_dataset_split(split, epoch, combine)
        share, seed, pad = self.cfg.replace_prob, self.cfg.seed, self.source_dictionary.pad()
        replaced = ReplacedDataset(blocks, self.source_dictionary, share=share, seed=seed)
        parts = {
            "id": data.IdDataset(),
            "net_input": {
                "src_tokens": data.RightPadDataset(replaced, pad_idx=pad),
                "src_lengths": data.NumelDataset(replaced, reduce=False),
            },
            "target": data.RightPadDataset(replaced.part("labels"), pad_idx=0),
            "nsentences": data.NumSamplesDataset(),
            "ntokens": data.NumelDataset(replaced, reduce=True),
        }
        order = [np.random.default_rng(seed).permutation(len(replaced)), replaced.sizes]
        examples = data.NestedDictionaryDataset(parts, sizes=[replaced.sizes])
        self.datasets[split] = data.SortDataset(examples, sort_order=order)
