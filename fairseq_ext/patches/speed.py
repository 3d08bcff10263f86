"""Patches that change no result, but what it costs."""

from fairseq_ext.wrapping import wrap


def smooth_in_one_pass() -> None:
    """Compute label-smoothed cross-entropy and its gradient together.

    Fault: The loss passes over all scores seven times, and keeps four copies.
    Asked: who translates; silent, slow; none.
    Since: always.
    Until: torch has such a loss in one kernel.
    """
    from fairseq_ext.criterions.smoothed_loss import compute_loss

    path = "fairseq.criterions.label_smoothed_cross_entropy:LabelSmoothedCrossEntropyCriterion"
    wrap(path, "compute_loss", compute_loss)


def update_in_one_kernel() -> None:
    """Let Adam update all parameters in one kernel.

    Fault: Without apex Adam takes about ten operations for each tensor.
    Asked: who trains; silent, slow; none.
    Since: always.
    Until: fairseq takes torch's fused Adam.
    """
    from fairseq_ext.patches.adam import step

    wrap("fairseq.optim.adam:Adam", "step", step)


def copy_in_one_operation() -> None:
    """Copy gradients and parameters between 16 bits and float32, and take norms, all together.

    Fault: Each parameter takes four operations in 16 bits, and a norm: half of a step's.
    Asked: who trains on a GPU; silent, slow; none.
    Since: fairseq 0.9.
    Until: fairseq takes torch's operations on lists.
    """
    from fairseq_ext.patches import mixed_precision

    owner = "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin"
    wrap(owner, "_sync_fp16_grads_to_fp32", mixed_precision.copy_gradients)
    wrap(owner, "_sync_fp32_params_to_fp16", mixed_precision.copy_parameters)
    wrap(owner, "zero_grad", mixed_precision.zero_gradients)
    wrap("fairseq.utils", "clip_grad_norm_", mixed_precision.clip_norm)


def activate_in_one_kernel() -> None:
    """Compute gelu in the precision of its input; torch's kernel does so in float32 inside.

    Fault: In 16 bits gelu copies to float32 and back. Numbers are the same.
    Asked: who trains models with gelu; silent, slow; none.
    Since: fairseq 0.9.
    Until: fairseq's gelu calls torch's directly.
    """
    from torch.nn.functional import gelu

    wrap("fairseq.modules", "gelu", lambda original, x: gelu(x))
