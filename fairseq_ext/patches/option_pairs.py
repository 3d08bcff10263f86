"""Rules for options of fairseq that have to suit each other, checked at start."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from fairseq_ext.errors import UsageError

Values = Mapping[str, Any]
"""Names of options -> values, None where there is none."""


class Rule(NamedTuple):
    """A rule for options of which none is None.

    Attributes:
        names: of the options, which the error names.
        holds: tells whether the values suit each other.
        advice: what is accepted.
    """

    names: str
    holds: Callable[[Values], bool]
    advice: str


def _below(one: str, other: str) -> Callable[[Values], bool]:
    return lambda v: v[one] < v[other]


def _divides(side: str) -> Callable[[Values], bool]:
    # a width whose default is that of the other side is text on a command line
    return lambda v: int(v[f"{side}_embed_dim"]) % int(v[f"{side}_attention_heads"]) == 0


def _has_layers(side: str) -> Callable[[Values], bool]:
    def holds(values: Values) -> bool:
        kept = values[f"{side}_layers_to_keep"]
        kept = kept.split(",") if isinstance(kept, str) else kept
        numbers = [str(layer).strip() for layer in kept]  # fairseq reads no brackets
        return all(n.isdecimal() and int(n) < values[f"{side}_layers"] for n in numbers)

    return holds


def _can_mask_words(values: Values) -> bool:
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.masked_lm import MaskedLMTask

    task = TASK_REGISTRY.get(values["task"], object)
    return not (values["mask_whole_words"] and issubclass(task, MaskedLMTask))


def _refines(flag: str) -> Callable[[Values], bool]:
    def holds(values: Values) -> bool:
        from fairseq.tasks import TASK_REGISTRY
        from fairseq.tasks.translation_lev import TranslationLevenshteinTask

        task = TASK_REGISTRY.get(values["task"], object)
        return not values[flag] or issubclass(task, TranslationLevenshteinTask)

    return holds


def _restores_weights(values: Values) -> bool:
    saving = any(values[f"memory_efficient_{kind}"] for kind in ("fp16", "bf16"))
    return not values["quant_noise_pq"] or ((values["fp16"] or values["bf16"]) and not saving)


def _in_steps(values: Values) -> bool:
    named = values["lr_scheduler"] == "tri_stage" and values["phase_ratio"] is None
    return not named or values["decay_steps"] > 0


def _has_period(values: Values) -> bool:
    named = values["lr_scheduler"] == "cosine" and values["lr_period_updates"] <= 0
    return not named or values["max_update"] > values["warmup_updates"]


RULES = [
    Rule("shard_id num_shards", _below("shard_id", "num_shards"), "shards are numbered from 0"),
    Rule(
        "distributed_rank distributed_world_size",
        _below("distributed_rank", "distributed_world_size"),
        "ranks are numbered from 0",
    ),
    Rule("nbest beam", lambda v: v["nbest"] <= v["beam"], "give no more than --beam hypotheses"),
    Rule(
        "min_len max_len_b max_len_a",
        lambda v: v["max_len_a"] > 0 or v["min_len"] <= v["max_len_b"],
        "no output could be that long; raise --max-len-b, or lower --min-len",
    ),
    Rule(
        "random_token_prob leave_unmasked_prob",
        lambda v: v["random_token_prob"] + v["leave_unmasked_prob"] <= 1,
        "give shares of the masked tokens, 1 together at most",
    ),
    Rule(
        "lr_scheduler warmup_updates",
        lambda v: v["lr_scheduler"] != "inverse_sqrt" or v["warmup_updates"] > 0,
        "its learning rates are relative to the warm-up; give 1 update or more",
    ),
    Rule(
        "best_checkpoint_metric eval_bleu",
        lambda v: v["best_checkpoint_metric"] != "bleu" or v["eval_bleu"],
        "validation measures BLEU with --eval-bleu alone; give it too, or another metric",
    ),
    Rule(
        "write_checkpoints_asynchronously",
        lambda v: not v["write_checkpoints_asynchronously"] or find_spec("iopath") is not None,
        "it needs the package iopath, which is not installed; install it, or leave the flag out",
    ),
    Rule(
        "task mask_whole_words",
        _can_mask_words,
        "fairseq's task fails with whole words; leave the flag out",
    ),
    *(
        Rule(
            f"task {flag}",
            _refines(flag),
            "only models that refine a translation in steps have any; leave the flag out",
        )
        for flag in ("print_step", "retain_iter_history")
    ),
    Rule(
        "quant_noise_pq fp16 bf16 memory_efficient_fp16 memory_efficient_bf16",
        _restores_weights,
        "the noise of each pass stays in the weights, unless --fp16 or --bf16 keeps a copy in "
        "float32; give one of them, or leave the noise out",
    ),
    Rule("lr_scheduler decay_steps", _in_steps, "give --decay-steps, or --phase-ratio"),
    Rule(
        "lr_scheduler phase_ratio max_update",
        lambda v: v["lr_scheduler"] != "tri_stage" or v["max_update"] > 0,
        "shares of a training need its length; give --max-update",
    ),
    Rule(
        "lr_scheduler max_update warmup_updates lr_period_updates",
        _has_period,
        "give a --max-update above the warm-up, or --lr-period-updates",
    ),
]
for _side in ("encoder", "decoder"):
    _heads, _width, _kept = (
        f"{_side}_{name}" for name in ("attention_heads", "embed_dim", "layers_to_keep")
    )
    RULES += [
        Rule(f"{_heads} {_width}", _divides(_side), "give heads that divide the width"),
        Rule(
            f"{_kept} {_side}_layers",
            _has_layers(_side),
            "layers are numbered from 0; give those of the model that is pruned, as in 0,2",
        ),
    ]


def check_pairs(settings: Mapping[str, tuple[str, Any]]) -> None:
    """Raise UsageError if settings do not suit each other.

    Args:
        settings: name -> how the setting is given, as in "--beam", and its value.
    """
    values = {name: value for name, (_, value) in settings.items()}
    for names, holds, advice in RULES:
        if all(_is_set(values.get(name)) for name in names.split()) and not holds(values):
            shown = " and ".join("{} is {}".format(*settings[name]) for name in names.split())
            raise UsageError(f"{shown}; {advice}")


def _is_set(value: Any) -> bool:
    """Tell whether an option has a value that refers to no other one."""
    return value is not None and not str(value).startswith(("${", "???"))
