"""RoBERTa-style models: fairseq's RoBERTa with our attention, and segments if wanted."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Optional

from fairseq.models import FairseqEncoderModel
from fairseq.models.roberta import model as stock
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from omegaconf import OmegaConf
from torch import Tensor, nn

from fairseq_ext.attention import Attention, AttentionRecorder, SecondPass, adversary
from fairseq_ext.attention.model_report import ModelReport
from fairseq_ext.errors import UsageError
from fairseq_ext.models import pretrained
from fairseq_ext.models.adversaries import report_model
from fairseq_ext.models.config import (
    Option,
    keep_on,
    option,
    stock_options,
    to_transformer_config,
)
from fairseq_ext.models.mixins import Monitored, Prunable
from fairseq_ext.models.options import ENCODER_OPTIONS
from fairseq_ext.models.role_heads import check_annotated
from fairseq_ext.models.task_heads import build_mlp
from fairseq_ext.models.transformer import Disturbance, TransformerEncoder

POSITIONS = 512  # if neither model nor task says how many

_SHARED = {
    *("activation_fn", "dropout", "attention_dropout", "activation_dropout"),
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("encoder_normalize_before", "layernorm_embedding"),
    *("encoder_layerdrop", "encoder_layers_to_keep"),
    *("quant_noise_pq", "quant_noise_pq_block_size", "quant_noise_scalar"),
    *("checkpoint_activations", "offload_activations", "min_params_to_wrap"),
}

OPTIONS: list[Option] = [
    *(stock_option for stock_option in stock_options() if stock_option[0] in _SHARED),
    option(
        "max_positions",
        Optional[int],  # noqa: UP045 (argparse)
        None,
        "positions that have an embedding (default: --tokens-per-sample)",
    ),
    option(
        "segments",
        Optional[int],  # noqa: UP045
        None,
        "segments that have an embedding, BERT's token types (default: those of the checkpoint "
        "that is fine-tuned, 2 for pre-training on pairs, else 0)",
    ),
    option(
        "layer_norm_eps",
        Optional[float],  # noqa: UP045
        None,
        "added to the variance by layer normalisation (default: 1e-5, as in fairseq; BERT: 1e-12)",
    ),
    option("pooler_activation_fn", str, "tanh", "activation function of classification heads"),
    option("pooler_dropout", float, 0.0, "dropout of classification heads"),
    option("untie_weights_roberta", bool, False, "output weights other than the embeddings"),
    option("load_checkpoint_heads", bool, False, "register the heads that a checkpoint has"),
    option(
        "spectral_norm_classification_head",
        bool,
        False,
        "spectral normalisation of classification heads",
    ),
    *ENCODER_OPTIONS,
]
"""Names and meanings as in fairseq's RoBERTa, and those of our attention."""


def init_parameters(module: nn.Module) -> None:
    """fairseq's initialisation of BERT; it cannot be asked of attention without queries, and has
    been done in adversaries."""
    queryless = isinstance(module, Attention) and module.q_proj is None
    if not (queryless or isinstance(module, adversary.Map)):
        init_bert_params(module)


class RobertaEncoder(stock.RobertaEncoder):
    """fairseq's, around our Transformer encoder, with embeddings of segments if there are any."""

    def __init__(self, args: Namespace, dictionary: Any) -> None:
        super().__init__(args, dictionary)
        width = args.encoder_embed_dim
        self.embed_segments = nn.Embedding(args.segments, width) if args.segments else None
        for module in self.modules():
            if hasattr(module, "normalized_shape"):  # apex has a LayerNorm of its own
                module.eps = args.layer_norm_eps

    def build_encoder(self, args: Namespace, dictionary: Any, embed_tokens: nn.Embedding):
        encoder = TransformerEncoder(to_transformer_config(args), dictionary, embed_tokens)
        encoder.apply(init_parameters)
        return encoder

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Tensor | None = None,
        segments: Tensor | None = None,
        token_embeddings: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq; the features [B, S, C] are in the second result too.

        Of a second pass there are features only, [2 B, S, C] with those of the first.

        Args:
            src_tokens: [B, S]. masked_tokens: [B, S] bool, those to predict; all by default.
            segments: [B, S] from 0, of each token; all 0 by default.
        """
        features, extra = self.extract_features(
            src_tokens, return_all_hiddens, segments, token_embeddings, **options
        )
        extra["features"] = features
        return features if features_only else self.output_layer(features, masked_tokens), extra

    def extract_features(
        self,
        src_tokens: Tensor,
        return_all_hiddens: bool = False,
        segments: Tensor | None = None,
        token_embeddings: Tensor | None = None,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        noise: Disturbance | None = None,
        annotations: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        encoded = self.sentence_encoder(
            src_tokens,
            return_all_hiddens=return_all_hiddens,
            token_embeddings=self._embed(src_tokens, segments, token_embeddings),
            recorder=recorder,
            second=second,
            noise=noise,
            annotations=annotations,
        )
        states = encoded["encoder_states"] if return_all_hiddens else None
        return encoded["encoder_out"][0].transpose(0, 1), {"inner_states": states}

    def _embed(self, tokens: Tensor, segments: Tensor | None, given: Tensor | None) -> Tensor:
        """[B, S, C] of tokens and segments, without positions."""
        embedded = self.sentence_encoder.embed_tokens(tokens) if given is None else given
        if self.embed_segments is None:
            return embedded
        return embedded + self.embed_segments(tokens.new_zeros(1) if segments is None else segments)

    def freeze_lm_head(self) -> None:
        """What an objective without it does not use is no parameter to train (or to reduce)."""
        shared = self.sentence_encoder.embed_tokens.weight
        for parameter in self.lm_head.parameters():
            parameter.requires_grad = parameter is shared


class RobertaModel(Monitored, Prunable, stock.RobertaModel):
    """The common base of our architectures; each is registered with its own configuration."""

    def __init__(self, args: Namespace, encoder: RobertaEncoder) -> None:
        FairseqEncoderModel.__init__(self, encoder)  # fairseq's initialises as `init_parameters`
        self.args = args
        self.apply(init_parameters)
        self.classification_heads = nn.ModuleDict()
        self.task_head: nn.Module | None = None
        self.report: ModelReport | None = None

    @classmethod
    def add_args(cls, parser: Any) -> None:
        super(stock.RobertaModel, cls).add_args(parser)  # from the configuration
        keep_on(parser._actions, getattr(cls, "__dataclass"))

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RobertaModel":
        """Build it, with the positions and segments that the task needs.

        Raises:
            UsageError: the task makes longer sequences than there are positions.
        """
        given = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else vars(cfg)
        args, longest = Namespace(**given), task.max_positions()
        pretrained.adopt(args, getattr(task, "pretrained", None))
        for name in ("activation_fn", "hna_weight"):  # no enumerations, in checkpoints
            setattr(args, name, str(getattr(args, name)))
        args.max_positions = args.max_positions or longest or POSITIONS
        if isinstance(longest, int) and longest > args.max_positions:
            raise UsageError(
                f"the task makes sequences of up to {longest} tokens, and --max-positions is "
                f"{args.max_positions}; give fewer by --tokens-per-sample, or more positions"
            )
        check_annotated(args.encoder_roles, args.encoder_layers, task)
        if args.segments is None:
            args.segments = getattr(task, "segments", 0)
        model = cls(args, RobertaEncoder(args, task.source_dictionary))
        model.report = report_model(model, task)
        return model

    def decided(self) -> dict[str, Any]:
        """What was not given as an option, for the checkpoint: in another task it may differ."""
        return {name: getattr(self.args, name) for name in pretrained.ADOPTED}

    def attach(self, head: nn.Module) -> None:
        """Put the head of a task in the place of the one for masked language modelling."""
        self.task_head, self.encoder.lm_head = head, None

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """As in fairseq; the head attached stays where a checkpoint has none, or another's."""
        end = ".out_proj.weight"  # which fairseq looks for, and spectral normalisation renames
        named = {k[: -len("_orig")]: x for k, x in state_dict.items() if k.endswith(f"{end}_orig")}
        state_dict.update(named)
        super().upgrade_state_dict_named(state_dict, name)
        for key in named:
            state_dict.pop(key, None)
        if self.task_head is None:
            return
        prefix = f"{name}." if name else ""
        for key in [key for key in state_dict if key.startswith(f"{prefix}encoder.lm_head.")]:
            del state_dict[key]
        given = [key for key in state_dict if key.startswith(f"{prefix}task_head.")]
        if not given or (self.report and self.report.new_task_head):
            for key in given:
                del state_dict[key]
            own = self.task_head.state_dict(prefix=f"{prefix}task_head.")
            state_dict.update({key: value.clone() for key, value in own.items()})

    def register_token_head(self, name: str, classes: int) -> None:
        """A head for all tokens, with GELU as in ELECTRA, among the classification heads."""
        self.classification_heads[name] = build_mlp(self.args, classes, "gelu")

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        further_heads: Sequence[str] = (),
        task_head: bool = False,
        masked_tokens: Tensor | None = None,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """As in fairseq, plus a recorder, a second pass and noise, as in our translation models.

        Args:
            further_heads: classification heads beside the main output; what they say is in the
                second result, as "heads".
            task_head: the main output is that of the attached head.
        """
        if recorder is not None:
            recorder.maps = {}
        if second is not None:
            second.counts = {}
        encoded, extra = self.encoder(
            src_tokens, True, return_all_hiddens, recorder=recorder, second=second, **inputs
        )

        def output(features: Tensor) -> Tensor:
            if classification_head_name is not None:
                return self.classification_heads[classification_head_name](features)
            if task_head and self.task_head is not None:
                return self.task_head(features, src_tokens.eq(self.encoder.dictionary.pad()))
            return features if features_only else self.encoder.output_layer(features, masked_tokens)

        features, *others = encoded.chunk(1 if second is None else 2)
        extra["features"] = features
        extra["heads"] = {n: self.classification_heads[n](features) for n in further_heads}
        if recorder is not None:
            extra["attention_maps"] = recorder.maps
        if second is not None:
            extra["second"] = output(others[0]), {"features": others[0]}
            extra["counts"] = second.counts
        return output(features), extra
