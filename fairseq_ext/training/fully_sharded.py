"""Models that several processes share, by torch's `fully_shard`: `--ddp-backend fsdp2`.

Each process holds a part of every parameter, of its gradient and of its state in the optimiser, and
gathers a layer's parameters while it computes the layer. Checkpoints are those of one process:
names, shapes and values are whole, so that any number of processes reads them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion
from torch import Tensor, nn
from torch import distributed as dist

from fairseq_ext.errors import UsageError
from fairseq_ext.permissions import is_given

BACKEND = "fsdp2"


def is_chosen(cfg: Any) -> bool:
    """Return whether a training shares its model."""
    return cfg.distributed_training.ddp_backend == BACKEND


def check(cfg: Any) -> None:
    """Raise UsageError for what does not go with a model that processes share."""
    flags, common = cfg.distributed_training, cfg.common
    wrong = {
        "--distributed-world-size 1": flags.distributed_world_size == 1,
        "--fp16, which --bf16 is in place of": common.fp16,
        "--amp, which --bf16 is in place of": common.amp,
        "--memory-efficient-bf16": common.memory_efficient_bf16,
        "--store-ema": cfg.ema.store_ema,
        "--use-bmuf": cfg.optimization.use_bmuf,
        "--zero-sharding os": flags.zero_sharding == "os",
        "--cpu-offload": flags.cpu_offload,
        "--use-sharded-state": flags.use_sharded_state,
        "--no-last-checkpoints": cfg.checkpoint.no_last_checkpoints,
        "--compile": is_given("--compile"),
        "--optimizer adafactor": getattr(cfg.optimizer, "_name", None) == "adafactor",
    }
    for given, is_wrong in wrong.items():
        if is_wrong:
            raise UsageError(
                f"--ddp-backend {BACKEND} does not go with {given}; leave one of them out"
            )


def shard(model: nn.Module, group: Any, device: torch.device) -> nn.Module:
    """Return a model whose parameters are shared by the processes of a group, layer by layer.

    A model in 16 bits computes in them; parameters, gradients and updates are in float32.

    Raises:
        UsageError: the parameters are a criterion's, or layers have some in common.
    """
    from torch.distributed.device_mesh import DeviceMesh  # slow, as are other parts of it
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    layers = [*_find_layers(model)]
    _check_parts(model, layers)
    members: Any = group or dist.group.WORLD
    mesh = DeviceMesh.from_group(members, device.type)
    dtype = next(model.parameters()).dtype
    half = None if dtype == torch.float32 else dtype
    policy = MixedPrecisionPolicy(half, torch.float32, cast_forward_inputs=False)
    model.to(device)
    for parameter in model.parameters():  # buffers stay as fairseq gives them to a model
        parameter.data = parameter.data.float()
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    model.register_state_dict_post_hook(_gather_parameters)
    model.register_load_state_dict_pre_hook(_shard_parameters)
    return model


def _find_layers(model: nn.Module) -> Iterator[nn.Module]:
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] == "layers":
            yield from (layer for layer in module if any(True for _ in layer.parameters()))


def _check_parts(model: nn.Module, layers: list[nn.Module]) -> None:
    if isinstance(model, FairseqCriterion):
        raise UsageError(
            f"--ddp-backend {BACKEND} shares models, and this --criterion has parameters; leave "
            "one of them out"
        )
    seen: set[nn.Parameter] = set()
    for layer in layers:
        own = {*layer.parameters()}
        if own & seen:
            raise UsageError(
                f"--ddp-backend {BACKEND} shares parameters layer by layer, and layers of this "
                "model have some in common; leave out the option that shares layers"
            )
        seen |= own


def share_state(optimizer: torch.optim.Optimizer) -> None:
    """Let the state of an optimiser be saved whole, and be loaded in parts."""
    optimizer.register_state_dict_post_hook(_gather_state)
    optimizer.register_load_state_dict_pre_hook(_shard_state)


def clip_norm(params: list[Tensor], max_norm: float) -> Tensor:
    """Return the norm of gradients of all processes, and scale them to a largest norm above 0."""
    grads = [parameter.grad for parameter in params if parameter.grad is not None]
    total = _gather(torch.nn.utils.get_total_norm(grads))
    if max_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(params, max_norm, total)
    return total


def _gather_parameters(model: nn.Module, state: Any, *_: Any) -> None:
    owners = {name: id(own) for name, own in model.named_parameters(remove_duplicate=False)}
    whole: dict[int, Any] = {}  # a parameter with two names is saved once
    for name, value in state.items():
        owner = owners.get(name, id(value))
        whole[owner] = state[name] = whole[owner] if owner in whole else _save(value)


def _shard_parameters(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, value in state.items():
        state[name] = _shard_like(own.get(name), value)


def _gather_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    for number, values in state["state"].items():
        state["state"][number] = {name: _save(value) for name, value in values.items()}


def _shard_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parts = {
        number: {name: _shard_like(own[number], value) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return state | {"state": parts}


def _gather(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _save(value: Any) -> Any:
    return _gather(value).cpu() if isinstance(value, Tensor) else value


def _shard_like(own: Any, value: Any) -> Any:
    """Return this process's part of a whole tensor, if what takes its place is sharded."""
    from torch.distributed.tensor import distribute_tensor

    if not hasattr(own, "placements") or getattr(value, "shape", None) != own.shape:
        return value
    whole = value.to(own.device, own.dtype)
    return distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)
