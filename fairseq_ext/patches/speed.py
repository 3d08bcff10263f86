"""Patches that change no result, but what it costs."""

from fairseq_ext.wrapping import wrap


def smooth_in_one_pass() -> None:
    """Compute label-smoothed cross-entropy and its gradient together.

    Fault: It passes over the scores of the whole vocabulary seven times, and keeps four copies.
    Asked: who translates; silent, slow; none.
    Since: always.
    Until: torch or fairseq has such a loss in one kernel.
    """
    from fairseq_ext.criterions.smoothed_loss import compute_loss

    path = "fairseq.criterions.label_smoothed_cross_entropy:LabelSmoothedCrossEntropyCriterion"
    wrap(path, "compute_loss", compute_loss)


def update_in_one_kernel() -> None:
    """Let Adam update all parameters in one kernel.

    Fault: Without apex Adam takes about ten operations for each tensor, each of which passes over
    memory.
    Asked: who trains; silent, slow; none.
    Since: always.
    Until: fairseq takes torch's fused Adam.
    """
    from fairseq_ext.patches.adam import step

    wrap("fairseq.optim.adam:Adam", "step", step)
