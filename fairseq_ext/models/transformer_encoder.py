"""Transformer encoder with our attention, of translation models and of RoBERTa-style ones."""

from collections.abc import Callable
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from fairseq_ext.attention import AttentionRecorder, Inputs
from fairseq_ext.data.batch_facts import has_padding, pass_on
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.models.layer_forms import set_form
from fairseq_ext.models.layers import (
    EncoderLayer,
    build_relative_embeddings,
    count_positions,
    decode_masks,
    run_layers,
    run_layers_twice,
    share_positions,
)
from fairseq_ext.models.model_options import embed_positions
from fairseq_ext.models.role_options import build_symbols


class TransformerEncoder(TransformerEncoderBase):
    """An encoder of fairseq's whose layers get `Inputs` where fairseq's get a padding mask."""

    built = 0

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding) -> None:
        super().__init__(embed_positions(cfg, "encoder"), dictionary, embed_tokens)
        share_positions(self.layers)
        self.relative = build_relative_embeddings(self.layers, cfg.encoder.embed_dim)
        self.max_source_positions = count_positions(self.layers, cfg.max_source_positions)
        self.symbols = build_symbols(cfg, dictionary)
        set_form(self, cfg)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer."""
        self.built += 1  # fairseq does not say which layer it asks for
        return EncoderLayer(cfg, self.built - 1)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        noise: Callable[[Tensor, Tensor], Tensor] | None = None,
        annotations: Tensor | None = None,
        mask_positions: Callable[[Tensor], Tensor] | None = None,
    ) -> dict[str, list[Tensor]]:
        """Encode [B, S] tokens; arguments and result are fairseq's, except for these.

        With a second pass, encoder_out is [S, 2 B, C], the rows of the first pass first; all else
        is of the first pass.

        Args:
            noise: makes other embedded tokens [B, S, C] of those that would enter, and padding
                [B, S].
            annotations: [B, S, 3], the facts of parses that roles see (`roles.TokenFeatures`).
            mask_positions: gives positions [S, B, C] of tokens that are real [B, S]. Then the
                output has "decoded" [S, B, C] too, with which masked tokens are predicted.
        """
        padding = pass_on(src_tokens, src_tokens.eq(self.padding_idx))
        inputs = Inputs(padding if has_padding(padding) else None, recorder=recorder)
        inputs.relative = None if self.relative is None else self.relative()
        if self.symbols is not None:
            inputs.token_features = self.symbols(src_tokens, annotations)
        kept = None if second is None else second.embedded_padding
        if token_embeddings is None and (noise is not None or kept == "bert"):
            token_embeddings = self.embed_tokens(src_tokens)
        if noise is not None:
            scaled = noise(self.embed_scale * token_embeddings, padding)
            token_embeddings = scaled / self.embed_scale
        placed = src_tokens
        if kept == "bert":
            placed = src_tokens.masked_fill(padding, self.dictionary.unk())  # it has positions
        x, embedding = self.forward_embedding(placed, token_embeddings)
        if inputs.padding is not None and kept is None:
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)
        if second is None:
            states = run_layers(self.layers, x, inputs)
            last = states[-2:]
        else:
            states, last = run_layers_twice(list(self.layers), x, inputs, second)
        x, decoded = last[-1], []
        if mask_positions is not None:
            positions = mask_positions(~padding)
            decoded = [decode_masks(self.layers[-1], last[0], positions, inputs, second)]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],  # [S, B, C]
            "decoded": decoded,
            "encoder_padding_mask": [padding],  # [B, S]
            "encoder_embedding": [embedding],  # [B, S, C]
            "encoder_states": states if return_all_hiddens else [],
            "fc_results": [None] * len(self.layers) if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(1, keepdim=True).int()],
        }

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """Reorder the output as fairseq does, but let a sentence's hypotheses share its one row.

        Beam search first asks for each sentence several times. This is only noted. From then on
        `new_order` counts hypotheses, and the hypotheses of a sentence stand together.
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
