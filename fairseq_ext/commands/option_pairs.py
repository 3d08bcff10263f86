"""Rules for options of fairseq that have to suit each other, checked at start."""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from fairseq_ext.attention.options import Rule, check_rules

OLDER_NUMPY = ("1.", "2.0.", "2.1.", "2.2.", "2.3.")


def _rule(others: str, broken: Callable[..., Any], advice: str) -> Rule:
    """Return a rule for an option and others, all of them with a value."""
    shown = "{one} and {other}" if others else "{one}"
    return Rule(others, f"{shown}; {advice}", lambda *v: None not in v and broken(*v))


def _has_other_layers(kept: Any, layers: int) -> bool:
    kept = kept.split(",") if isinstance(kept, str) else kept
    numbers = [str(layer).strip() for layer in kept]  # fairseq reads no brackets
    return not all(n.isdecimal() and int(n) < layers for n in numbers)


def _fails_with_whole_words(task: str, whole_words: bool) -> bool:
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.masked_lm import MaskedLMTask

    return whole_words and issubclass(TASK_REGISTRY.get(task, object), MaskedLMTask)


def _refines_nothing(task: str, asked: bool) -> bool:
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.translation_lev import TranslationLevenshteinTask

    kind = TASK_REGISTRY.get(task, object)
    return asked and not issubclass(kind, TranslationLevenshteinTask)


def _keeps_noise(noise: float, fp16: bool, bf16: bool, *saving: bool) -> bool:
    return bool(noise) and (not (fp16 or bf16) or any(saving))


RULES: dict[str, Rule | list[Rule]] = {
    "shard_id": [_rule("num_shards", lambda s, n: s >= n, "shards are numbered from 0")],
    "distributed_rank": [
        _rule("distributed_world_size", lambda r, n: r >= n, "ranks are numbered from 0")
    ],
    "nbest": [_rule("beam", lambda n, beam: n > beam, "give no more than --beam hypotheses")],
    "min_len": _rule(
        "max_len_b max_len_a",
        lambda least, b, a: a <= 0 and least > b,
        "no output could be that long; raise --max-len-b, or lower --min-len",
    ),
    "num_batch_buckets": Rule(
        "",
        "{one}, and fairseq makes no buckets with numpy 2.4 or newer; leave it out, or install "
        "numpy 2.3",
        lambda most: most and most > 0 and not version("numpy").startswith(OLDER_NUMPY),
    ),
    "context_window": [
        _rule(
            "tokens_per_sample",
            lambda window, size: 0 < size <= window,
            "each sample begins with its context; give a --tokens-per-sample above it",
        ),
        *(
            _rule(
                flag,
                lambda window, parts: window > 0 and parts > 1,
                "the context of a sample is read before it, by one process; give 1, or no window",
            )
            for flag in ("num_workers", "num_shards", "distributed_world_size")
        ),
    ],
    "replace_unk": _rule(
        "print_alignment",
        lambda _, form: form == "soft",
        "each unknown word is replaced by one word; give --print-alignment hard",
    ),
    "print_alignment": Rule(
        "buffer_size",
        "{one} cannot be printed by fairseq-interactive; give hard, or run fairseq-generate",
        lambda form, _: form == "soft",
    ),
    "post_process": _rule(
        "bpe",
        lambda joined, bpe: joined == bpe == "sentencepiece",
        "pieces that are joined twice lose all spaces; leave one of the two out",
    ),
    "random_token_prob": _rule(
        "leave_unmasked_prob",
        lambda one, other: one + other > 1,
        "give shares of the masked tokens, 1 together at most",
    ),
    "best_checkpoint_metric": _rule(
        "eval_bleu",
        lambda metric, measured: metric == "bleu" and not measured,
        "validation measures BLEU with --eval-bleu alone; give it too, or another metric",
    ),
    "write_checkpoints_asynchronously": _rule(
        "",
        lambda asked: asked and find_spec("iopath") is None,
        "it needs the package iopath, which is not installed; install that, or leave it out",
    ),
    "task": [
        _rule(
            "mask_whole_words",
            _fails_with_whole_words,
            "fairseq's task looks for the BPE in settings that it lacks; leave the flag out",
        ),
        *(
            _rule(
                flag,
                _refines_nothing,
                "only models that refine a translation in steps have any; leave the flag out",
            )
            for flag in ("print_step", "retain_iter_history")
        ),
    ],
    "quant_noise_pq": _rule(
        "fp16 bf16 memory_efficient_fp16 memory_efficient_bf16",
        _keeps_noise,
        "the noise of each pass stays in the weights, unless --fp16 or --bf16 keeps a copy in "
        "float32; give one of them, or leave the noise out",
    ),
    "lr_scheduler": [
        _rule(
            "warmup_updates",
            lambda name, updates: name == "inverse_sqrt" and updates <= 0,
            "its learning rates are relative to the warm-up; give 1 update or more",
        ),
        Rule(
            "phase_ratio decay_steps",
            "{one} and {other}; give --decay-steps, or --phase-ratio",
            lambda name, ratio, steps: name == "tri_stage" and ratio is None and steps <= 0,
        ),
        _rule(
            "phase_ratio max_update",
            lambda name, _, updates: name == "tri_stage" and updates <= 0,
            "shares of a training need its length; give --max-update",
        ),
        _rule(
            "max_update warmup_updates lr_period_updates",
            lambda name, most, first, period: name == "cosine" and period <= 0 and most <= first,
            "give a --max-update above the warm-up, or --lr-period-updates",
        ),
    ],
}
for _side in ("encoder", "decoder"):
    RULES |= {
        f"{_side}_attention_heads": [
            # a width whose default is that of the other side is text on a command line
            _rule(
                f"{_side}_embed_dim",
                lambda heads, width: int(width) % int(heads),
                "give heads that divide the width",
            )
        ],
        f"{_side}_layers_to_keep": _rule(
            f"{_side}_layers",
            _has_other_layers,
            "layers are numbered from 0; give those of the model that is pruned, as in 0,2",
        ),
    }


def check_pairs(settings: Mapping[str, tuple[str, Any]]) -> None:
    """Raise UsageError if settings do not suit each other.

    Args:
        settings: name -> how the setting is given, as in "--beam", and its value.
    """
    values = {name: value for name, (_, value) in settings.items() if not _refers(value)}
    check_rules(values, RULES, lambda name, value: f"{settings[name][0]} is {value}")


def _refers(value: Any) -> bool:
    """Tell whether the value of an option is that of another one, or missing."""
    return str(value).startswith(("${", "???"))
