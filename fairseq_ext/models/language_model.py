"""Causal language models: fairseq's Transformer decoder without an encoder, with our attention."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from fairseq.models import transformer_lm as stock
from fairseq.models.transformer import Embedding
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from fairseq.utils import eval_str_list
from torch import Tensor, nn

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.attention.options import Rule, Rules, check_rules, flag
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.models import options
from fairseq_ext.models.config import Option, stock_options, to_dict, to_transformer_config
from fairseq_ext.models.mixins import AttentionModel, record_attention, report_model
from fairseq_ext.models.transformer import TransformerDecoder
from fairseq_ext.safe_loading import parse_literal

WITHOUT_EFFECT = ("add_bos_token", "tpu", "scale_fc", "scale_attn", "scale_heads", "scale_resids")
"""Options that fairseq's language models have and do not read; NormFormer's get lost there."""

ONE_MATRIX = "{one} shares one matrix, and {other} has several; leave one out"

RULES: Rules = {
    "character_embeddings": Rule(
        "adaptive_input",
        "{one} and {other} are both given, and tokens are embedded in one way; leave one out",
    ),
    "share_decoder_input_output_embed": [
        Rule("character_embeddings", ONE_MATRIX),
        Rule("adaptive_input", ONE_MATRIX),
    ],
    "adaptive_input": Rule(
        "adaptive_input_cutoff",
        "{one} needs --adaptive-input-cutoff, as in 20000,60000",
        lambda adaptive, cutoff: adaptive and not cutoff,
    ),
    "tie_adaptive_weights": [
        Rule(
            "adaptive_input",
            "{one} ties --adaptive-input, which is not given; give it, or leave the other out",
            lambda tied, adaptive: tied and not adaptive,
        ),
        *(
            Rule(
                f"{output} {input}",
                "{other} differ, and with {one} both are one; give the same",
                lambda tied, one, other: tied and one != other,
            )
            for output, input in (
                ("adaptive_softmax_factor", "adaptive_input_factor"),
                ("adaptive_softmax_cutoff", "adaptive_input_cutoff"),
                ("decoder_output_dim", "decoder_input_dim"),
            )
        ),
    ],
}
"""Rules for options of embeddings, which are fairseq's."""


def list_stock_options() -> Iterator[Option]:
    """Yield the options of fairseq's own Transformer language models."""
    for option in stock_options(stock.TransformerLanguageModelConfig):
        if option[0] not in WITHOUT_EFFECT:
            yield option


def build_embedding(args: Namespace, dictionary: Any) -> nn.Module:
    """Build the embeddings of tokens: of characters, adaptive ones, or one vector for each."""
    if args.character_embeddings:
        return CharacterTokenEmbedder(
            dictionary,
            parse_literal(args.character_filters),
            args.character_embedding_dim,
            args.decoder_embed_dim,
            args.char_embedder_highway_layers,
        )
    if args.adaptive_input:
        return AdaptiveInput(
            len(dictionary),
            dictionary.pad(),
            args.decoder_input_dim,
            args.adaptive_input_factor,
            args.decoder_embed_dim,
            eval_str_list(args.adaptive_input_cutoff, type=int),
            args.quant_noise_pq,
            args.quant_noise_pq_block_size,
        )
    return Embedding(len(dictionary), args.decoder_input_dim, dictionary.pad())


def check_dictionary_size(args: Namespace, dictionary: Any) -> None:
    """Raise UsageError if options divide the dictionary into parts beyond its end."""
    for name in ("adaptive_input_cutoff", "adaptive_softmax_cutoff"):
        last = max(eval_str_list(getattr(args, name), type=int) or [0])
        if last > len(dictionary):
            raise UsageError(
                f"{flag(name)} is {getattr(args, name)}, and the dictionary has {len(dictionary)} "
                "symbols; give smaller numbers, or an --arch that is not for large dictionaries"
            )


class TransformerLanguageModel(AttentionModel, stock.TransformerLanguageModel):
    """The common base of our causal language models, each with a configuration of its own.

    Parameters and their names are those of fairseq's `transformer_lm`.
    """

    decoder: TransformerDecoder
    kept: str | None

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "TransformerLanguageModel":
        """Build the model of a flat configuration, and report its heads to the task.

        Raises:
            UsageError: options do not suit each other.
        """
        # options of an encoder are at their defaults
        given = {**options.DEFAULTS, "head_gate_sites": "decoder", **to_dict(cfg)}
        args = Namespace(**given, no_cross_attention=True)
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))
        if args.max_target_positions is None:
            args.max_target_positions = args.tokens_per_sample
        check_dictionary_size(args, task.source_dictionary)
        check_rules(vars(args), RULES)
        options.check_options(vars(args))
        config = to_transformer_config(args)
        embedding = build_embedding(args, task.source_dictionary)
        model = cls(TransformerDecoder(config, task.target_dictionary, embedding, True))
        model.kept = args.decoder_layers_to_keep
        report_model(model, task)
        return model

    def adopted_options(self) -> dict[str, Any]:
        """Return the number of layers, and which ones were kept of more; for checkpoints."""
        return {"decoder_layers": len(self.decoder.layers), "decoder_layers_to_keep": self.kept}

    @record_attention
    def forward(
        self,
        src_tokens: Tensor,
        *,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits [B, T, V] of the token after each of src_tokens [B, T], and extra output.

        Further arguments are those of the decoder; see also `record_attention`. There is no second
        pass, which is one of an encoder.
        """
        return self.decoder(src_tokens, recorder=recorder, **inputs)
