"""RoBERTa-style models: fairseq's RoBERTa with our attention, and segments if wanted.

DeBERTa is one of them, by its options: see `models/deberta.py`.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from fairseq.models import FairseqEncoderModel
from fairseq.models.roberta import model as stock
from torch import Tensor, nn

from fairseq_ext.attention import AttentionRecorder
from fairseq_ext.attention.context import split_passes
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.second_pass.passes import SecondPass
from fairseq_ext.models import pretrained, role_options, task_heads
from fairseq_ext.models.config import TaskFacts, to_dict, to_transformer_config
from fairseq_ext.models.generator import Generator
from fairseq_ext.models.mixins import AttentionModel, record_attention, report_model
from fairseq_ext.models.model_report import ModelReport
from fairseq_ext.models.options import check_options
from fairseq_ext.models.roberta_encoder import RobertaEncoder, init_parameters

POSITIONS = 512  # if neither model nor task gives a number


class RobertaModel(AttentionModel, stock.RobertaModel):
    """The common base of our RoBERTa-style architectures, each with a configuration of its own.

    Attributes:
        args: the options, with the ones that were filled in.
        task_head: the head of a task, in the place of the one for masked language modelling.
        generator: what replaces tokens, in pre-training alone.
        report: what the model and the criterion tell each other.
    """

    encoder: RobertaEncoder

    def __init__(self, args: Namespace, encoder: RobertaEncoder) -> None:
        FairseqEncoderModel.__init__(self, encoder)  # fairseq's initialises as `init_parameters`
        self.args = args
        self.apply(init_parameters)
        self.classification_heads = nn.ModuleDict()
        self.task_head: nn.Module | None = None
        self.generator: Generator | None = None
        self.report: ModelReport | None = None

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "RobertaModel":
        """Build the model, with the positions and segments that the task needs.

        Raises:
            UsageError: the task makes longer sequences than there are positions, or options do not
                suit each other or the checkpoint that is fine-tuned.
        """
        args, facts, longest = Namespace(**to_dict(cfg)), TaskFacts.read(task), task.max_positions()
        pretrained.adopt_options(args, facts.pretrained)
        args.max_positions = args.max_positions or longest or POSITIONS
        if isinstance(longest, int) and longest > args.max_positions:
            raise UsageError(
                f"the task makes sequences of up to {longest} tokens, and --max-positions is "
                f"{args.max_positions}; give fewer by --tokens-per-sample, or more positions"
            )
        if args.segments is None:
            args.segments = facts.segments
        check_options(vars(args))
        model = cls(args, RobertaEncoder(args, task.source_dictionary))
        # after the encoder has counted the layers that are kept
        role_options.check_annotated(args.encoder_roles, args.encoder_layers, task)
        model.report = report_model(model, task)
        model.report.positions = model.encoder.max_positions()
        model.report.selects_by_places = True
        return model

    def adopted_options(self) -> dict[str, Any]:
        """Return the options that the model filled in; a checkpoint must hold them.

        With another task, or without the checkpoint that was fine-tuned, they would differ.
        """
        return {name: getattr(self.args, name) for name in pretrained.ADOPTED}

    def attach(self, head: nn.Module) -> None:
        """Put the head of a task in the place of the head for masked language modelling."""
        self.task_head, self.encoder.lm_head, self.encoder.mask_positions = head, None, None

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Upgrade a checkpoint as fairseq does, and keep an attached head that it does not have.

        The head for masked language modelling is taken off if the checkpoint has none.
        """
        # fairseq looks for .out_proj.weight, which spectral normalisation renames
        end = ".out_proj.weight_orig"
        renamed = {k.removesuffix("_orig"): v for k, v in state_dict.items() if k.endswith(end)}
        state_dict.update(renamed)
        prefix = f"{name}." if name else ""
        self._keep_generator(state_dict, prefix)
        super().upgrade_state_dict_named(state_dict, name)
        for key in renamed:
            state_dict.pop(key, None)
        pooler = [state_dict.pop(key) for key in pretrained.POOLER if key in state_dict]
        if pooler and self.task_head is not None:
            task_heads.load_pooler(self.task_head, *pooler)
        parts = [key.removeprefix(f"{prefix}encoder.").partition(".")[0] for key in state_dict]
        if self.task_head is not None:
            self._keep_task_head(self.task_head, state_dict, prefix)
        elif "sentence_encoder" in parts and "lm_head" not in parts:
            self.encoder.lm_head = self.encoder.mask_positions = None

    def _keep_generator(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Leave out a checkpoint's generator if there is none here, or keep the one here."""
        prefix += "generator."
        if self.generator is None:
            for key in [key for key in state_dict if key.startswith(prefix)]:
                del state_dict[key]
        elif not any(key.startswith(prefix) for key in state_dict):
            state_dict.update(self.generator.state_dict(prefix=prefix))

    def _keep_task_head(self, head: nn.Module, state_dict: dict[str, Tensor], prefix: str) -> None:
        saved = [key for key in state_dict if key.startswith(f"{prefix}task_head.")]
        replaced = not saved or (self.report and self.report.new_task_head)
        parts = tuple(f"{prefix}encoder.{part}." for part in ("lm_head", "mask_positions"))
        unwanted = [key for key in state_dict if key.startswith(parts)]
        for key in unwanted + (saved if replaced else []):
            del state_dict[key]
        if replaced:
            own = head.state_dict(prefix=f"{prefix}task_head.")
            state_dict.update({key: value.clone() for key, value in own.items()})

    def register_generator(self, share: float) -> None:
        """Add a generator with a share of the width, which replaces tokens (ELECTRA)."""
        cfg, symbols = to_transformer_config(self.args), len(self.encoder.dictionary)
        inner = self.args.embedding_width or self.args.encoder_embed_dim
        self.generator = Generator(cfg, share, symbols, inner)
        self.generator.apply(init_parameters)
        for module in self.generator.modules():
            if hasattr(module, "normalized_shape"):
                module.eps = self.args.layer_norm_eps

    def replace_tokens(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [B, S] with samples at masked positions, and the generator's scores [n, V].

        Args:
            tokens: [B, S], with <mask>.
            hidden: [B, S], what is behind masks, padding elsewhere.
        """
        assert self.generator is not None
        words, encoder = self.encoder.dictionary, self.encoder.sentence_encoder
        masked, embedded = hidden.ne(words.pad()), self.encoder._embed(tokens, None, None)
        x, _ = encoder.forward_embedding(tokens, embedded)
        weight = encoder.embed_tokens.weight
        scores = self.generator(x, tokens.eq(words.pad()), masked, weight)
        sampled = self.generator.sample(scores, [words.pad(), words.index("<mask>")])
        return tokens.masked_scatter(masked, sampled), scores

    def register_token_head(self, name: str, classes: int) -> None:
        """Add a head for all tokens, with GELU as in ELECTRA, to the classification heads."""
        self.classification_heads[name] = task_heads.build_mlp(self.args, classes, "gelu")

    @record_attention
    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        further_heads: Sequence[str] = (),
        task_head: bool = False,
        masked_tokens: Tensor | None = None,
        hidden: Tensor | None = None,
        *,
        recorder: AttentionRecorder | None = None,
        second: SecondPass | None = None,
        **inputs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Encode as fairseq does; the output of a second pass is in `extra["second"]`.

        Args:
            further_heads: classification heads beside the main output; their outputs are in
                `extra["heads"]`.
            task_head: the attached head makes the main output.
            hidden: [B, S] the tokens that masks hide, padding elsewhere: the generator replaces
                masks before the model sees them. `extra["replaced"]` [B, S] has the tokens then,
                `extra["generator"]` [n, V] the generator's scores.
            inputs: further arguments of the encoder; see also `record_attention`.
        """
        generated = {}
        if hidden is not None:
            src_tokens, scores = self.replace_tokens(src_tokens, hidden)
            generated = {"replaced": src_tokens, "generator": scores}
            if recorder is not None:
                recorder.begin(generated | {"src_tokens": src_tokens})
        headed = classification_head_name is not None or task_head and self.task_head is not None
        inputs |= {"recorder": recorder, "second": second, "decode": not (headed or features_only)}
        encoded, extra = self.encoder(src_tokens, True, return_all_hiddens, **inputs)
        extra |= generated
        passes = 1 if second is None else 2

        def output(features: Tensor, number: int = 0) -> Tensor:
            if classification_head_name is not None:
                return self.classification_heads[classification_head_name](features)
            if task_head and self.task_head is not None:
                return self.task_head(features, src_tokens.eq(self.encoder.dictionary.pad()))
            if features_only:
                return features
            decoded = (
                split_passes(extra["decoded"], passes)[number] if "decoded" in extra else features
            )
            return self.encoder.output_layer(decoded, masked_tokens)

        features, *others = split_passes(encoded, passes)
        extra["features"] = features
        extra["heads"] = {n: self.classification_heads[n](features) for n in further_heads}
        if second is not None:
            extra["second"] = output(others[0], 1), {"features": others[0]}
        return output(features), extra
