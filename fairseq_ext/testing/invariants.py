"""Invariants of a model, whatever its attention; sentences are lists of token ids."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

PAD, EOS = 1, 2
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 11, EOS], [12, 5, 7, EOS]]
TARGETS = [[EOS, 20, 21, 22], [EOS, 23], [EOS, 24, 25, 26, 27]]
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-5}

Sentences = Sequence[list[int]]


def batch(sentences: Sentences, side: str = "right", extra: int = 0) -> Tensor:
    """Return sentences as one tensor [B, S], padded on one side, by `extra` more than needed."""
    size = max(map(len, sentences)) + extra
    pads = [[PAD] * (size - len(s)) for s in sentences]
    return torch.tensor(
        [s + p if side == "right" else p + s for s, p in zip(sentences, pads, strict=True)]
    )


def real_rows(output: Tensor, tokens: Tensor) -> list[Tensor]:
    """Return the rows of each sentence that are no padding."""
    return [rows[row.ne(PAD)] for rows, row in zip(output, tokens, strict=True)]


def run(
    model: Any,
    sources: Sentences,
    targets: Sentences | None = None,
    side: str = "right",
    target_side: str = "right",
    extra: int = 0,
) -> list[Tensor]:
    """Return the logits at the real positions, of the targets if there are any, by sentence."""
    source = read = batch(sources, side, extra)
    further: tuple = ()
    if targets is not None:
        read = batch(targets, target_side, extra)
        further = (None, read)
    with torch.no_grad():
        logits, _ = model(source, *further)
    return real_rows(logits, read)


def one_by_one(model: Any, sources: Sentences, targets: Sentences | None = None) -> list[Tensor]:
    """Return what `run` returns, each sentence in a batch of its own."""
    alone = [None] * len(sources) if targets is None else [[target] for target in targets]
    return [run(model, [x], target)[0] for x, target in zip(sources, alone, strict=True)]


def assert_batches_change_nothing(
    model: Any, sources: Sentences, targets: Sentences | None = None, **padding: Any
) -> None:
    """Assert that a sentence has the same logits in any batch, with any padding."""
    together = run(model, sources, targets, **padding)
    torch.testing.assert_close(together, one_by_one(model, sources, targets), **CLOSE)


def assert_masked_is_truncated(
    model: Any, sources: Sentences, targets: Sentences | None = None
) -> None:
    """Assert that the last two tokens turned into padding give what the shorter sentence gives."""
    cut = [s[:-2] for s in sources]
    masked = run(model, [c + [PAD, PAD] for c in cut], targets)
    torch.testing.assert_close(masked, run(model, cut, targets), **CLOSE)


def assert_no_look_ahead(model: Any, sources: Sentences, targets: Sentences | None = None) -> None:
    """Assert that a decoder's logits do not depend on later tokens, and do on the last one.

    A language model, a decoder alone, is given what it reads as `sources`.
    """
    changed = [sentence[:-1] + [30] for sentence in targets or sources]
    before = run(model, sources, targets)
    after = run(model, changed) if targets is None else run(model, sources, changed)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[:-1], other[:-1], atol=0, rtol=0)
        assert (one[-1] - other[-1]).abs().max() > 1e-4, "the last token has no effect"


def assert_decoding_is_teacher_forcing(
    model: Any, sources: Sentences, targets: Sentences | None = None, side: str = "right"
) -> None:
    """Assert that outputs and alignments token by token are those of all tokens at once.

    A language model, a decoder alone, is given what it reads as `sources`.
    """
    encoded, read = (None, sources) if targets is None else (batch(sources, side), targets)
    target, state = batch(read), {}  # type: ignore[var-annotated]
    with torch.no_grad():
        forced, extra = model(target) if encoded is None else model(encoded, None, target)
        memory = None if encoded is None else model.encoder(encoded)
        for t in range(target.size(1)):
            step, more = model.decoder(target[:, : t + 1], memory, state)
            real, maps = target[:, t].ne(PAD), [each["attn"][0] for each in (more, extra)]
            torch.testing.assert_close(step[real, 0], forced[real, t], **CLOSE)
            if maps[0] is not None:
                torch.testing.assert_close(maps[0][real, 0], maps[1][real, t])
