"""Translation models: fairseq's Transformer with our attention at every site."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from torch import Tensor, nn

from fairseq_ext.attention import AttentionRecorder, Inputs, SecondPass
from fairseq_ext.models.adversaries import report_model
from fairseq_ext.models.config import keep_on, to_transformer_config
from fairseq_ext.models.hard_coded import cross_layers
from fairseq_ext.models.layers import DecoderLayer, EncoderLayer, wrap_layer
from fairseq_ext.models.mixins import Monitored, Prunable
from fairseq_ext.models.options import check_supported
from fairseq_ext.models.passes import through, twice
from fairseq_ext.models.role_heads import build_symbols, check_annotated
from fairseq_ext.models.shared_layers import check_shareable, share_layers

Disturbance = Callable[[Tensor, Tensor], Tensor]
"""(embedded tokens [B, S, C] as they enter the encoder, padding [B, S]) -> what enters instead."""


class TransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder whose layers get `Inputs` where fairseq's get a padding mask."""

    built = 0

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.symbols = build_symbols(cfg, dictionary)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        self.built += 1  # fairseq does not say which layer it asks for
        return wrap_layer(EncoderLayer(cfg, self.built - 1), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        noise: Disturbance | None = None,
        annotations: Tensor | None = None,
    ) -> dict[str, list[Tensor]]:
        """Encode [B, S] tokens; arguments and result as in fairseq, plus a recorder and noise.

        With a second pass, its output stands below that of the first: encoder_out is [S, 2 B, C];
        all else is of the first.

        Args:
            annotations: [B, S, 3], what roles see of parses (`roles.TokenFeatures`).
        """
        padding = src_tokens.eq(self.padding_idx)
        inputs = Inputs(padding if padding.any() else None, recorder=recorder)
        if self.symbols is not None:
            inputs.token_features = self.symbols(src_tokens, annotations)
        if noise is not None:
            given = self.embed_tokens(src_tokens) if token_embeddings is None else token_embeddings
            token_embeddings = noise(self.embed_scale * given, padding) / self.embed_scale
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if inputs.padding is not None:
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)
        if second is None:
            states = through(self.layers, x, inputs)
            x = states[-1]
        else:
            states, x = twice(list(self.layers), x, inputs, second)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],  # [S, B, C]
            "encoder_padding_mask": [padding],  # [B, S]
            "encoder_embedding": [embedding],  # [B, S, C]
            "encoder_states": states if return_all_hiddens else [],
            "fc_results": [None] * len(self.layers) if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(1, keepdim=True).int()],
        }

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """As in fairseq, but the hypotheses of a sentence share its one row.

        Beam search first asks for each sentence several times, which is only noted; from then on
        `new_order` counts hypotheses, and those of a sentence stand together.
        """
        sentences, beam = encoder_out["encoder_padding_mask"][0].size(0), encoder_out.get("beam")
        if beam is None:
            beam = new_order.numel() // sentences
            copies = torch.arange(sentences, device=new_order.device).repeat_interleave(beam)
            if beam < 2 or not torch.equal(new_order, copies):
                return super().reorder_encoder_out(encoder_out, new_order)
        elif new_order.numel() != sentences * beam:
            kept = new_order.view(-1, beam)[:, 0] // beam
            encoder_out = super().reorder_encoder_out(encoder_out, kept)
        return {**encoder_out, "beam": beam}


class TransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder whose layers get `Inputs` where fairseq's get padding masks.

    Attributes:
        always_align: return the cross-attention of the last layer that has any in training too;
            without it, it is made only in evaluation or when `alignment_layer` asks.
    """

    built = 0
    always_align = False

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        self.built += 1
        attends = self.built - 1 in cross_layers(cfg.cross_layers, cfg.decoder.layers)
        layer = DecoderLayer(cfg, self.built - 1, no_encoder_attn or not attends)
        return wrap_layer(layer, cfg)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict | None = None,
        features_only: bool = False,
        src_lengths: Any = None,
        return_all_hiddens: bool = False,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Decode [B, T] tokens; arguments and result as in fairseq, plus a recorder."""
        x, extra = self.extract_features(
            prev_output_tokens, encoder_out, incremental_state, **options
        )
        return x if features_only else self.output_layer(x), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        recorder: AttentionRecorder | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """[B, T, C] features; the map is [B, T, S], averaged over (the first) heads of a layer."""
        layers = list(self.layers)  # LayerDrop draws once
        if alignment_layer is None and (self.always_align or not self.training):
            attending = (
                i for i, layer in enumerate(layers) if getattr(layer, "encoder_attn", None)
            )
            alignment_layer = max(attending, default=None)
        x, tokens = self.forward_embedding(prev_output_tokens, incremental_state)
        causal = incremental_state is None and not full_context_alignment
        own = Inputs(self._visible_padding(tokens, causal), causal, recorder=recorder)
        memory, given = None, None
        if encoder_out is not None and encoder_out["encoder_out"]:
            memory = encoder_out["encoder_out"][0]
            padding = next(iter(encoder_out["encoder_padding_mask"]), None)
            if incremental_state is None and padding is not None and not padding.any():
                padding = None
            given = Inputs(padding, recorder=recorder)
            if incremental_state is None:
                given.query_padding = own.padding
            else:
                given.first_query = prev_output_tokens.size(1) - 1
        states, attention = [x], None
        for index, layer in enumerate(layers):
            asked = index == alignment_layer
            x, weights, _ = layer(
                x,
                memory,
                given,
                incremental_state,
                self_attn_padding_mask=own,
                need_attn=asked,
                need_head_weights=asked,
            )
            states.append(x)
            if asked and weights is not None:
                attention = weights[:alignment_heads].mean(0).to(x.dtype)
        return self._project_out(x), {"attn": [attention], "inner_states": states}

    def forward_embedding(
        self, tokens: Tensor, incremental_state: dict | None
    ) -> tuple[Tensor, Tensor]:
        """Embedded [T, B, C] and the tokens [B, T]; only the last step if incremental."""
        positions = 0
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
            if self.embed_positions is not None:
                positions = positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(tokens)
        for part in (self.quant_noise, self.project_in_dim):
            x = x if part is None else part(x)
        x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1), tokens

    def _visible_padding(self, tokens: Tensor, causal: bool) -> Tensor | None:
        """[B, T] padding, or None if no real token can see any of it."""
        padding = tokens.eq(self.padding_idx)
        # under a causal mask padding is seen only by what comes after it
        seen = padding[:, :-1] & ~padding[:, 1:] if causal else padding
        return padding if seen.any() else None

    def _project_out(self, x: Tensor) -> Tensor:
        # [T, B, C] -> [B, T, C]
        for part in (self.layer_norm, self.project_out_dim):
            x = x if part is None else part(x)
        return x.transpose(0, 1)


class TransformerModel(Monitored, Prunable, TransformerModelBase):
    """The common base of our architectures; each is registered with its own configuration."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        # not TransformerModelBase's: it would add the nested options again
        super(FairseqEncoderDecoderModel, cls).add_args(parser)
        keep_on(parser._actions, getattr(cls, "__dataclass"))

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "TransformerModel":
        config = to_transformer_config(cfg)
        check_annotated(config.encoder_roles, config.encoder.layers, task)
        check_supported(config)
        if config.share_encoder_decoder_layers:
            check_shareable(config)
        model = super().build_model(config, task)
        if config.share_encoder_decoder_layers:
            share_layers(model)
        model.decoder.always_align = getattr(getattr(task, "cfg", None), "load_alignments", False)
        report_model(model, task)
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return TransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        noise: Disturbance | None = None,
        annotations: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq; what a recorder hears is in the output as "attention_maps" too.

        A loss on a tensor that is not part of the output breaks under data parallelism. So the
        output of a second pass is in it as "second", and what it counts as "counts".
        """
        if recorder is not None:
            recorder.maps = {}
        if second is not None:
            second.counts = {}
        encoder_out = self.encoder(
            src_tokens,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
            recorder=recorder,
            second=second,
            noise=noise,
            annotations=annotations,
        )
        decode = partial(
            self.decoder,
            prev_output_tokens,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )
        [encoded] = encoder_out["encoder_out"]
        encoded, *others = encoded.chunk(1 if second is None else 2, 1)
        output, extra = decode(encoder_out | {"encoder_out": [encoded]}, recorder=recorder)
        if recorder is not None:
            extra["attention_maps"] = recorder.maps
        if second is not None:
            extra["second"] = decode(encoder_out | {"encoder_out": others})
            extra["counts"] = second.counts
        return output, extra
