"""Patches of training in several processes: models that they share, and DDP on CPUs."""

from collections.abc import Callable
from typing import Any

from fairseq.dataclass import ChoiceEnum, configs, constants, initialize

from fairseq_ext.training import fully_sharded
from fairseq_ext.wrapping import TRAINER, find_owner, wrap, wrapper_of


def share_parameters() -> None:
    """Train a model that several processes share, by torch's `fully_shard`: --ddp-backend fsdp2.

    Fault: --ddp-backend fully_sharded needs fairscale, whose makers have stopped.
    Asked: whose model does not fit each GPU; loud; none.
    Since: fairseq 0.10.
    Until: fairseq wraps models by `fully_shard`.
    """
    names = [choice.value for choice in constants.DDP_BACKEND_CHOICES]
    choices = ChoiceEnum(sorted([*names, fully_sharded.BACKEND]))
    settings: Any = configs.DistributedTrainingConfig
    settings.__dataclass_fields__["ddp_backend"].type = choices
    settings.__annotations__["ddp_backend"] = choices
    initialize.hydra_init()  # which has read the former choices

    def build(original: Callable, args: Any, model: Any, group: Any, device: Any) -> Any:
        if args.ddp_backend != fully_sharded.BACKEND:
            return original(args, model, group, device)
        return fully_sharded.shard(model, group, device)

    def optimize(original: Callable, trainer: Any) -> None:
        if not fully_sharded.is_chosen(trainer.cfg):
            return original(trainer)
        common = trainer.cfg.common
        given, common.bf16 = common.bf16, False  # parameters are in float32
        try:
            original(trainer)
        finally:
            common.bf16 = given
        return fully_sharded.share_state(trainer.optimizer.optimizer)

    def clip(original: Callable, trainer: Any, max_norm: float) -> Any:
        if not fully_sharded.is_chosen(trainer.cfg):
            return original(trainer, max_norm)
        return fully_sharded.clip_norm([*trainer.optimizer.params], max_norm)

    def saves_together(trainer: Any) -> bool:
        return fully_sharded.is_chosen(trainer.cfg) or alone(trainer)

    wrap("fairseq.models", "DistributedFairseqModel", build)
    wrap(TRAINER, "_build_optimizer", optimize)
    wrap(TRAINER, "clip_grad_norm", clip)
    trainer = find_owner(TRAINER)
    alone = trainer.always_call_state_dict_during_save_checkpoint.fget
    trainer.always_call_state_dict_during_save_checkpoint = property(saves_together)


@wrapper_of("fairseq.models.distributed_fairseq_model", "DistributedDataParallel")
def average_gradients_on_cpus(original: Callable, module: Any, **how: Any) -> Any:
    """Let --ddp-backend pytorch_ddp train on CPUs.

    Fault: fairseq names a GPU for it.
    Asked: who tries on CPUs what runs on GPUs; loud; none.
    Since: always.
    Until: fairseq passes no device_ids without CUDA.
    """
    if next(module.parameters()).device.type == "cpu":
        how |= {"device_ids": None, "output_device": None}
    return original(module, **how)
