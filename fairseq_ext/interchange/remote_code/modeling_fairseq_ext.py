"""Models of fairseq_ext for `trust_remote_code=True`: encoders, translation, language models."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
)
from transformers.utils import can_return_tuple

from fairseq_ext.attention.context import AttentionRecorder
from fairseq_ext.interchange.remote_code.carried import __name__ as _  # noqa: F401
from fairseq_ext.interchange.remote_code.network import Head, Stack
from fairseq_ext.interchange.remote_code.side import Side

IGNORED = -100
"""The label of what has no loss."""


class FairseqExtConfig(PreTrainedConfig):
    """Configuration of a model, as config.json has it.

    Args:
        encoder_side: see `side.Side`, or None.
        decoder_side: likewise.
        segments: BERT's token types, 0 for none.
        head_activation: of the head for masked words; None: there is no head.
        layer_norm_eps: of all norms, if it is not their default.
        tied: parameters that are one with others, by name.
    """

    model_type = "fairseq_ext"

    def __init__(
        self,
        encoder_side: dict[str, Any] | None = None,
        decoder_side: dict[str, Any] | None = None,
        segments: int = 0,
        head_activation: str | None = None,
        layer_norm_eps: float | None = None,
        tied: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        self.encoder_side, self.decoder_side = encoder_side, decoder_side
        self.segments, self.head_activation = segments, head_activation
        self.layer_norm_eps, self.tied = layer_norm_eps, tied or {}
        super().__init__(**more)


def find_padding(tokens: Tensor, mask: Tensor | None, pad: int, past: int = 0) -> Tensor | None:
    """Return padding [B, past + T] bool of an attention mask, or else of tokens [B, T]."""
    if mask is not None:
        return ~mask.bool()
    return None if past else tokens.eq(pad)


def measure_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Return the mean cross-entropy of labels [B, T], if there are any."""
    if labels is None:
        return None
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


def refuse(asked: dict[str, Any]) -> None:
    """Raise ValueError for outputs that the models here do not have."""
    for name in ("output_attentions", "output_hidden_states", "inputs_embeds", "position_ids"):
        if asked.get(name) is not None and asked[name] is not False:
            raise ValueError(f"{name} is not supported by this model; leave it out")


class Encoder(Stack):
    """An encoder as `generate` calls it."""

    main_input_name = "input_ids"

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **unused: Any
    ) -> BaseModelOutput:
        """Return states [B, S, C] of tokens [B, S]."""
        padding = find_padding(input_ids, attention_mask, self.pad)
        return BaseModelOutput(last_hidden_state=super().forward(input_ids, padding))


class Decoder(Stack):
    """A decoder with its output projection."""

    def __init__(self, values: dict[str, Any], pad: int) -> None:
        super().__init__(values, pad)
        width = self.side.output or self.side.width
        self.output_projection = nn.Linear(width, self.side.symbols, bias=False)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits [B, T, V]; arguments are those of `Stack`."""
        return self.output_projection(super().forward(*args, **kwargs))


class SentenceEncoder(nn.Module):
    """The encoder of a RoBERTa-style model, with segments and a head if there are any."""

    def __init__(self, config: FairseqExtConfig, head: bool) -> None:
        super().__init__()
        side = Side.read(config.encoder_side or {})
        self.sentence_encoder = Stack(config.encoder_side or {}, config.pad_token_id)
        segments = config.segments
        self.embed_segments = nn.Embedding(segments, side.width) if segments else None
        activation = config.head_activation or "gelu"
        self.lm_head = Head(side.width, side.symbols, activation) if head else None


class FairseqExtPreTrainedModel(PreTrainedModel):
    """Base of all models here."""

    config_class = FairseqExtConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def finish(self) -> None:
        """Share parameters, and set what norms add to a variance."""
        config = self.config
        if config.layer_norm_eps is not None:
            for module in self.modules():
                if hasattr(module, "normalized_shape"):
                    module.eps = config.layer_norm_eps
        own = self.state_dict().keys()
        self._tied_weights_keys = {n: x for n, x in config.tied.items() if n in own}
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: modules have initialised themselves."""


class FairseqExtModel(FairseqExtPreTrainedModel):
    """An encoder without a head."""

    _keys_to_ignore_on_load_unexpected = [r"^encoder\.lm_head\."]
    headed = False

    def __init__(self, config: FairseqExtConfig) -> None:
        super().__init__(config)
        self.encoder = SentenceEncoder(config, self.headed)
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens."""
        return self.encoder.sentence_encoder.embed_tokens

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool = False,
        recorder: AttentionRecorder | None = None,
        **unused: Any,
    ) -> BaseModelOutput | MaskedLMOutput:
        """Return states [B, S, C], or logits [B, S, V] of the head.

        Args:
            input_ids: [B, S].
            attention_mask: [B, S], 0 at padding; by default padding is found by its symbol.
            token_type_ids: [B, S], segments.
            labels: [B, S], -100 where there is no loss.
            output_attentions: return the maps of all layers, [B, H, S, S].
            recorder: records maps of its own.
        """
        refuse(unused)
        encoder, stack = self.encoder, self.encoder.sentence_encoder
        added = None
        if encoder.embed_segments is not None:
            segments = input_ids.new_zeros(1, 1) if token_type_ids is None else token_type_ids
            added = encoder.embed_segments(segments)
        if output_attentions and recorder is None:
            left = stack.side.heads_left
            recorder = AttentionRecorder(lambda site, layer: range(left[layer]))
        padding = find_padding(input_ids, attention_mask, stack.pad)
        states = stack(input_ids, padding, added, recorder=recorder)
        maps = tuple(recorder.maps.values()) if output_attentions and recorder else None
        if encoder.lm_head is None:
            return BaseModelOutput(last_hidden_state=states, attentions=maps)
        logits = encoder.lm_head(states)
        return MaskedLMOutput(loss=measure_loss(logits, labels), logits=logits, attentions=maps)


class FairseqExtForMaskedLM(FairseqExtModel):
    """An encoder with its head for masked words."""

    headed = True


class FairseqExtForConditionalGeneration(FairseqExtPreTrainedModel, GenerationMixin):
    """A translation model."""

    def __init__(self, config: FairseqExtConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config.encoder_side or {}, config.pad_token_id)
        self.decoder = Decoder(config.decoder_side or {}, config.pad_token_id)
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens of the source."""
        return self.encoder.embed_tokens

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        **unused: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits [B, T, V] of a source [B, S] and what is written of the target [B, T].

        Args:
            decoder_input_ids: begins with </s>; by default it follows from the labels.
            labels: [B, T], -100 where there is no loss.
        """
        refuse(unused)
        pad = self.config.pad_token_id
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        memory_padding = None
        if attention_mask is not None or input_ids is not None:
            memory_padding = find_padding(input_ids, attention_mask, pad)  # type: ignore[arg-type]
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("give decoder_input_ids, which begin with </s>, or labels")
            shifted = F.pad(labels[:, :-1], (1, 0), value=self.config.eos_token_id)
            decoder_input_ids = shifted.masked_fill(shifted == IGNORED, pad)
        cache = past_key_values
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        past = 0 if cache is None else int(cache.get_seq_length())
        own = None if cache is None else (cache.self_attention_cache, cache.cross_attention_cache)
        logits = self.decoder(
            decoder_input_ids,
            find_padding(decoder_input_ids, decoder_attention_mask, pad, past),
            memory=encoder_outputs[0],
            memory_padding=memory_padding,
            cache=own,
            past=past,
        )
        return Seq2SeqLMOutput(
            loss=measure_loss(logits, labels),
            logits=logits,
            past_key_values=cache,
            encoder_last_hidden_state=encoder_outputs[0],
        )


class FairseqExtForCausalLM(FairseqExtPreTrainedModel, GenerationMixin):
    """A language model."""

    def __init__(self, config: FairseqExtConfig) -> None:
        super().__init__(config)
        self.decoder = Decoder(config.decoder_side or {}, config.pad_token_id)
        self.finish()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens."""
        return self.decoder.embed_tokens

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits [B, T, V] of what follows on each token [B, T].

        Args:
            attention_mask: [B, past + T], 0 at padding.
            labels: the tokens themselves, -100 where there is no loss.
        """
        refuse({name: value for name, value in unused.items() if name != "position_ids"})
        cache = past_key_values
        if use_cache and cache is None:
            cache = DynamicCache()
        past = 0 if cache is None else int(cache.get_seq_length())
        padding = find_padding(input_ids, attention_mask, self.config.pad_token_id, past)
        own = None if cache is None else (cache, None)
        logits = self.decoder(input_ids, padding, cache=own, past=past)
        loss = None if labels is None else measure_loss(logits[:, :-1], labels[:, 1:])
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
