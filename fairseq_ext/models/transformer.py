"""Translation models: fairseq's Transformer with our attention at every site."""

from typing import Any

import torch
from fairseq.models import transformer as stock
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_ext.attention import Attention, AttentionRecorder, Inputs
from fairseq_ext.attention.context import split_passes
from fairseq_ext.data import batch_facts
from fairseq_ext.data.batch_facts import has_padding
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.models import model_options, options, role_options, shared_layers
from fairseq_ext.models.config import resolve_options, to_transformer_config
from fairseq_ext.models.layer_forms import set_form
from fairseq_ext.models.layers import DecoderLayer, count_positions, share_positions
from fairseq_ext.models.mixins import SIDES, AttentionModel, record_attention, report_model
from fairseq_ext.models.transformer_encoder import TransformerEncoder


class TransformerDecoder(stock.TransformerDecoderBase):
    """A decoder of fairseq's whose layers get `Inputs` where fairseq's get padding masks.

    Attributes:
        always_align: return the map of the last layer with cross-attention in training too. Else
            the map is made only in evaluation, or when `alignment_layer` asks for it.
    """

    built = 0
    always_align = False

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Module,
        no_encoder_attn: bool = False,
    ) -> None:
        own = model_options.embed_positions(cfg, "decoder")
        super().__init__(own, dictionary, embed_tokens, no_encoder_attn)
        share_positions(self.layers)
        self.max_target_positions = count_positions(self.layers, cfg.max_target_positions)
        set_form(self, cfg)

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> nn.Module:
        """Build the next layer, with attention to the encoder if --cross-layers names it."""
        self.built += 1
        attending = model_options.parse_cross_layers(cfg.cross_layers, cfg.decoder.layers)
        attends = not no_encoder_attn and self.built - 1 in attending
        return DecoderLayer(cfg, self.built - 1, not attends)

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
        """Decode [B, T] tokens; arguments and result are fairseq's, plus a recorder."""
        beam = self._count_equal(prev_output_tokens, encoder_out, incremental_state)
        if beam > 1:
            one = {name: part for name, part in (encoder_out or {}).items() if name != "beam"}
            given = {"features_only": features_only, **options}
            x, extra = self(prev_output_tokens[::beam], one, incremental_state, **given)
            return x.repeat_interleave(beam, 0), self._share(extra, incremental_state, beam)
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
        """Return features [B, T, C], with a map [B, T, S]: the mean of a layer's (first) heads."""
        layers = list(self.layers)  # LayerDrop samples once
        if alignment_layer is None and (self.always_align or not self.training):
            attending = [
                index
                for index, layer in enumerate(layers)
                if layer.encoder_attn is not None and layer.encoder_attn.num_heads
            ]
            alignment_layer = max(attending, default=None)
        x, tokens = self.forward_embedding(prev_output_tokens, incremental_state)
        causal = incremental_state is None and not full_context_alignment
        facts = batch_facts.find(prev_output_tokens)
        own = Inputs(self._visible_padding(tokens, causal, facts), causal, recorder=recorder)
        memory, source = None, None
        if encoder_out is not None and encoder_out["encoder_out"]:
            memory = encoder_out["encoder_out"][0]
            padding = next(iter(encoder_out["encoder_padding_mask"]), None)
            source = Inputs(padding, recorder=recorder)
            if incremental_state is not None:
                source.first_query = prev_output_tokens.size(1) - 1
            else:
                source.query_padding = own.padding
                source.padding = padding if padding is not None and has_padding(padding) else None
        states, attention = [x], None
        for index, layer in enumerate(layers):
            aligns = index == alignment_layer
            wanted = {"need_attn": aligns, "need_head_weights": aligns}
            x, weights, _ = layer(
                x, memory, source, incremental_state, self_attn_padding_mask=own, **wanted
            )
            states.append(x)
            if aligns and weights is not None:
                attention = weights[:alignment_heads].mean(0).to(x.dtype)
        return self._project_out(x), {"attn": [attention], "inner_states": states}

    def _count_equal(
        self, tokens: Tensor, encoder_out: dict[str, Any] | None, state: dict | None
    ) -> int:
        """Return how many hypotheses of each sentence are equal: all, as beam search begins."""
        begins = state is not None and not state and not self.training
        beam = (encoder_out or {}).get("beam", 1)
        if not begins or beam == 1 or self._drops_out():
            return 1
        rows = tokens.view(-1, beam, tokens.size(1))
        return beam if (rows == rows[:, :1]).all() else 1

    def _drops_out(self) -> bool:
        """Return whether --retain-dropout is of any module here."""
        return any(getattr(m, "apply_during_inference", False) for m in self.modules())

    def _share(self, extra: dict[str, Any], state: dict | None, beam: int) -> dict[str, Any]:
        """Make what was computed once for each sentence that of each of its hypotheses."""
        for attention in self._attentions():
            attention.share(state, beam)
        return {
            "attn": [x if x is None else x.repeat_interleave(beam, 0) for x in extra["attn"]],
            "inner_states": [x.repeat_interleave(beam, 1) for x in extra["inner_states"]],
        }

    def _attentions(self) -> list[Attention]:
        layers = self.layers.children()  # LayerDrop draws random numbers for an iteration
        both = ((layer.self_attn, layer.encoder_attn) for layer in layers)
        return [attention for pair in both for attention in pair if attention is not None]

    def reorder_incremental_state_scripting(self, state: dict, new_order: Tensor) -> None:
        """Reorder caches as fairseq does, which looks for them in every module at every step."""
        for attention in self._attentions():
            attention.reorder_incremental_state(state, new_order)

    def forward_embedding(self, tokens: Tensor, state: dict | None) -> tuple[Tensor, Tensor]:
        """Return embedded [T, B, C] and plain tokens [B, T]; only the last step if incremental."""
        steps = slice(None if state is None else -1, None)
        x = self.embed_scale * self.embed_tokens(tokens[:, steps])
        for part in (self.quant_noise, self.project_in_dim):
            x = x if part is None else part(x)
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=state)
            x = x + positions[:, steps]
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1), tokens[:, steps]

    def _visible_padding(
        self, tokens: Tensor, causal: bool, facts: batch_facts.Facts | None
    ) -> Tensor | None:
        """Return padding [B, T], or None if no real token can see any of it.

        It is needed, too, to tell the length of sentences where there are more tokens than places.
        """
        padding = tokens.eq(self.padding_idx)
        if torch.compiler.is_compiling() or tokens.size(1) > self.max_target_positions:
            return padding
        # under a causal mask padding is seen only by tokens after it
        if facts is not None:
            return padding if (facts.padded_before if causal else facts.padded) else None
        seen = padding[:, :-1] & ~padding[:, 1:] if causal else padding
        return padding if seen.any() else None

    def _project_out(self, x: Tensor) -> Tensor:
        # [T, B, C] -> [B, T, C]
        for part in (self.layer_norm, self.project_out_dim):
            x = x if part is None else part(x)
        return x.transpose(0, 1)


class TransformerModel(AttentionModel, stock.TransformerModelBase):
    """The common base of our translation architectures, each with a configuration of its own."""

    encoder: TransformerEncoder
    decoder: TransformerDecoder
    kept: dict[str, str | None]

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "TransformerModel":
        """Build the model of a flat configuration, and report its heads to the task.

        Raises:
            UsageError: options do not suit each other, or the task.
        """
        options.check_options(resolve_options(cfg))
        config = to_transformer_config(cfg)
        if config.adaptive_softmax_cutoff:  # else it does nothing, and a checkpoint may have it
            options.check_embeddings(config, ["tie_adaptive_weights"])
        model = super().build_model(config, task)  # which counts the layers that are kept
        role_options.check_annotated(config.encoder_roles, config.encoder.layers, task)
        if config.share_encoder_decoder_layers:
            shared_layers.share_layers(model)
        model.kept = {side: getattr(config, side).layers_to_keep for side in SIDES}
        model.decoder.always_align = getattr(getattr(task, "cfg", None), "load_alignments", False)
        report_model(model, task)
        return model

    def adopted_options(self) -> dict[str, Any]:
        """Return the number of layers, and which ones were kept of more; for checkpoints."""
        numbers = {f"{side}_layers": len(getattr(self, side).layers) for side in SIDES}
        return numbers | {f"{side}_layers_to_keep": self.kept[side] for side in SIDES}

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: Any) -> TransformerEncoder:
        """Build our encoder in the place of fairseq's."""
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: Any) -> TransformerDecoder:
        """Build our decoder in the place of fairseq's."""
        return TransformerDecoder(cfg, tgt_dict, embed_tokens, cfg.no_cross_attention)

    @record_attention
    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        *,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Encode and decode as fairseq does; the output of a second pass is in `extra["second"]`.

        Further arguments are those of the encoder; see also `record_attention`.
        """
        encoder_out = self.encoder(
            src_tokens, src_lengths, return_all_hiddens, recorder=recorder, second=second, **inputs
        )
        [encoded] = encoder_out["encoder_out"]
        first, *others = (
            encoder_out | {"encoder_out": [memory]}
            for memory in split_passes(encoded, 1 if second is None else 2, 1)
        )
        given = {"alignment_layer": alignment_layer, "alignment_heads": alignment_heads}
        given["features_only"] = features_only
        output, extra = self.decoder(prev_output_tokens, first, recorder=recorder, **given)
        if second is not None:
            extra["second"] = self.decoder(prev_output_tokens, *others, **given)
        return output, extra
