"""Options of RoBERTa-style models alone, DeBERTa among them."""

# The values of choices are types for fairseq, made at run time.
# mypy: disable-error-code="valid-type"

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.utils import get_available_activation_fns

from fairseq_ext.attention.options import Rule, option, real, whole
from fairseq_ext.models.config import help_from_docstring

Activations = ChoiceEnum(get_available_activation_fns())

ROBERTA_SHARED = {
    *("activation_fn", "dropout", "attention_dropout", "activation_dropout"),
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("encoder_normalize_before", "layernorm_embedding"),
    *("encoder_layerdrop", "encoder_layers_to_keep"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
    *("checkpoint_activations", "offload_activations", "min_params_to_wrap"),
}
"""Options of fairseq's Transformer that RoBERTa has too."""


@dataclass
@help_from_docstring
class RobertaOptions:
    """Options of RoBERTa-style models that fairseq's Transformer does not have.

    Attributes:
        max_positions: number of positions that have an embedding (default: --tokens-per-sample)
        segments: number of segments (BERT's token types) that have an embedding (default: as in the
            checkpoint that is fine-tuned, 2 for pre-training on pairs, else 0)
        layer_norm_eps: added to the variance by layer normalisation (default: 1e-5; BERT: 1e-12)
        pooler_activation_fn: activation function of classification heads
        pooler_dropout: dropout of classification heads (default: the fine-tuned checkpoint's, or 0)
        pretrained_pooler: begin heads with BERT's trained pooler (default: if a checkpoint has it)
        untie_weights_roberta: give the output weights of its own, other than the embeddings
        load_checkpoint_heads: register the classification heads that a checkpoint has
        spectral_norm_classification_head: apply spectral normalisation to classification heads
        embedding_width: width of embeddings of tokens and segments, which a linear map takes to
            that of the layers; 0: the same
        encoder_conv_kernel: tokens that a convolution of the embeddings sees, whose output is added
            to that of the first layer (DeBERTa v2: 3); 0: none
        encoder_conv_activation_fn: activation function of that convolution
        enhanced_mask_decoder: predict masked tokens with absolute positions, which enter queries of
            the last layer, run twice more (DeBERTa)
    """

    max_positions: Optional[int] = None
    segments: Optional[int] = option(None, whole("[0, 10000]", "a number of segments"))
    layer_norm_eps: Optional[float] = option(
        None, real("(0, 1]", "a small number that keeps a quotient finite"), alike=True
    )
    pooler_activation_fn: str = option("tanh", alike=True)
    pooler_dropout: Optional[float] = None
    pretrained_pooler: Optional[bool] = None
    untie_weights_roberta: bool = False
    load_checkpoint_heads: bool = False
    spectral_norm_classification_head: bool = False
    embedding_width: int = option(0, whole("[0, 1000000]", "a size; 0: that of the layers"))
    encoder_conv_kernel: int = option(0, whole("[0, 1000000]", "a number of tokens; 0: none"))
    encoder_conv_activation_fn: Activations = option(
        "tanh", needs=("encoder_conv_kernel",), alike=True
    )
    enhanced_mask_decoder: bool = option(
        False,
        excludes=[
            Rule(
                "encoder_normalize_before",
                "{one} attends to the outputs of layers, which with {other} are not normalised; "
                "leave one of them out",
            ),
            Rule(
                "encoder_layerdrop",
                "{one} has what enters the last layer as keys, and {other} may drop that layer; "
                "leave one of them out",
            ),
            Rule(
                "criterion",
                "{one} is for masked tokens, which --criterion masked_lm has, and {other} has not; "
                "leave one of both out",
                lambda decodes, criterion: decodes and "replaced" in criterion,
            ),
        ],
    )
