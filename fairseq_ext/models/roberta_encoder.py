"""The encoder of RoBERTa-style models, DeBERTa among them: our layers, and segments if wanted."""

from argparse import Namespace
from typing import Any

import torch
from fairseq.models.roberta import model as stock
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

from fairseq_ext.attention import Attention
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.adversary import BertLinear
from fairseq_ext.models.config import to_transformer_config
from fairseq_ext.models.deberta import NarrowLMHead, build_mask_positions
from fairseq_ext.models.transformer_encoder import TransformerEncoder

PASSED = ("recorder", "second", "noise", "annotations")  # to the Transformer encoder


def init_parameters(module: nn.Module) -> None:
    """Initialise a module as fairseq initialises BERT's, also drawing attention's weights again.

    Attention without queries or keys is left out, which fairseq's function would ask for, and so
    are adversaries, which have initialised themselves.
    """
    if isinstance(module, Attention) and None not in (module.q_proj, module.k_proj):
        for projection in (module.q_proj, module.k_proj, module.v_proj):
            init_bert_params(projection)
    elif not isinstance(module, BertLinear):
        init_bert_params(module)


class RobertaEncoder(stock.RobertaEncoder):
    """An encoder of fairseq's RoBERTa around our Transformer encoder, with segments if wanted.

    Attributes:
        embed_segments: their embeddings, or None.
        project: what takes embeddings of another width to that of the layers, or None.
        mask_positions: of the enhanced mask decoder, or None.
    """

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        width = args.encoder_embed_dim
        inner = args.embedding_width or width
        self.embed_segments = nn.Embedding(args.segments, inner) if args.segments else None
        self.project = None if inner == width else nn.Linear(inner, width, bias=False)
        self.mask_positions = build_mask_positions(args)
        for module in self.modules():
            if hasattr(module, "normalized_shape"):  # apex has a LayerNorm of its own
                module.eps = args.layer_norm_eps

    def build_embedding(self, vocab_size: int, embedding_dim: int, padding_idx: int) -> Any:
        """Build the embeddings of tokens, which may be of another width than the layers."""
        return nn.Embedding(vocab_size, self.args.embedding_width or embedding_dim, padding_idx)

    def build_encoder(
        self, args: Namespace, dictionary: Any, embed_tokens: nn.Embedding
    ) -> TransformerEncoder:
        """Build our encoder in the place of fairseq's, initialised as BERT."""
        stand_in, pad = embed_tokens, embed_tokens.padding_idx
        if embed_tokens.embedding_dim != args.encoder_embed_dim:
            assert pad is not None
            stand_in = nn.Embedding(pad + 1, args.encoder_embed_dim, pad)  # it says the width
        encoder = TransformerEncoder(to_transformer_config(args), dictionary, stand_in)
        encoder.embed_tokens = embed_tokens
        encoder.apply(init_parameters)
        return encoder

    def build_lm_head(
        self, embed_dim: int, output_dim: int, activation_fn: str, weight: Any
    ) -> nn.Module:
        """Build the head for masked language modelling on embeddings of their width."""
        if (inner := self.args.embedding_width or embed_dim) != embed_dim:
            return NarrowLMHead(embed_dim, inner, output_dim, activation_fn, weight)
        return super().build_lm_head(embed_dim, output_dim, activation_fn, weight)

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits or features, and a dict with the features [B, S, C] as "features".

        With a second pass the features of both are returned, [2 B, S, C], the first pass first.

        Args:
            src_tokens: [B, S].
            masked_tokens: [B, S] bool, or their places [n] in the flattened batch: the tokens to
                predict; all by default.
            options: further arguments of `extract_features`.
        """
        options.setdefault("decode", not features_only)
        features, extra = self.extract_features(src_tokens, return_all_hiddens, **options)
        extra["features"] = features
        if features_only:
            return features, extra
        return self.output_layer(extra.get("decoded", features), masked_tokens), extra

    def extract_features(
        self,
        src_tokens: Tensor,
        return_all_hiddens: bool = False,
        segments: Tensor | None = None,
        token_embeddings: Tensor | None = None,
        decode: bool = False,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return features [B, S, C], and the states of all layers as "inner_states" if wanted.

        Args:
            segments: [B, S], the segment of each token, from 0; all 0 by default.
            decode: let an enhanced mask decoder make "decoded" [B, S, C], which predicts tokens.
            options: arguments of the Transformer encoder; others are ignored, as by fairseq's.
        """
        embedded = self._embed(src_tokens, segments, token_embeddings)
        passed = {name: value for name, value in options.items() if name in PASSED}
        if decode and self.mask_positions is not None:
            passed["mask_positions"] = self.mask_positions
        encoded = self.sentence_encoder(
            src_tokens, None, return_all_hiddens, token_embeddings=embedded, **passed
        )
        states = encoded["encoder_states"] if return_all_hiddens else None
        extra = {"inner_states": states}
        if encoded["decoded"]:
            extra["decoded"] = encoded["decoded"][0].transpose(0, 1)
        return encoded["encoder_out"][0].transpose(0, 1), extra

    def _embed(self, tokens: Tensor, segments: Tensor | None, embedded: Tensor | None) -> Tensor:
        """Return tokens, if need be embedded here, plus segments: [B, S, C] without positions."""
        if embedded is None:
            embedded = self.sentence_encoder.embed_tokens(tokens)
        if self.embed_segments is not None:
            segments = tokens.new_zeros(1) if segments is None else segments
            embedded = embedded + self.embed_segments(segments)
        return embedded if self.project is None else self.project(embedded)

    def output_layer(
        self, features: Tensor, masked_tokens: Tensor | None = None, **unused: Any
    ) -> Tensor:
        """Return the scores [..., V] of features [B, S, C], or of the masked tokens alone.

        Raises:
            UsageError: the encoder has no head for them.
        """
        if self.lm_head is None:
            raise UsageError(
                "this encoder has no head for masked language modelling; give features_only=True, "
                "or a --task on labelled text, or import an encoder with its head"
            )
        if masked_tokens is not None and masked_tokens.dtype == torch.long:
            features = features.flatten(0, 1).index_select(0, masked_tokens)
            masked_tokens = None
        return self.lm_head(features, masked_tokens)

    def max_positions(self) -> int:
        """Return how many tokens a sequence may have."""
        return min(self.args.max_positions, self.sentence_encoder.max_positions())

    def freeze_lm_head(self) -> None:
        """Exclude the LM head, apart from the embeddings, and its positions from training."""
        shared = self.sentence_encoder.embed_tokens.weight
        for part in (self.lm_head, self.mask_positions):
            for parameter in [] if part is None else part.parameters():
                parameter.requires_grad = parameter is shared
