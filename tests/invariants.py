"""What must hold of a model whatever its attention; sentences are lists of tokens."""

import torch

PAD, EOS = 1, 2
SENTENCES = [[5, 6, 7, 8, 9, EOS], [10, 11, EOS], [12, 5, 7, EOS]]
TARGETS = [[EOS, 20, 21, 22], [EOS, 23], [EOS, 24, 25, 26, 27]]
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def batch(sentences, side="right", extra=0):
    size = max(map(len, sentences)) + extra
    pads = [[PAD] * (size - len(s)) for s in sentences]
    return torch.tensor(
        [s + p if side == "right" else p + s for s, p in zip(sentences, pads, strict=True)]
    )


def real_rows(output, tokens):
    return [rows[row.ne(PAD)] for rows, row in zip(output, tokens, strict=True)]


def run(model, sources, targets=None, side="right", target_side="right", extra=0):
    """Logits at the real positions, of the targets if there are any, sentence by sentence."""
    source = read = batch(sources, side, extra)
    further = ()
    if targets is not None:
        read = batch(targets, target_side, extra)
        further = (None, read)
    with torch.no_grad():
        logits, _ = model(source, *further)
    return real_rows(logits, read)


def one_by_one(model, sources, targets=None):
    """The same, each sentence alone."""
    pairs = zip(sources, targets or [None] * len(sources), strict=True)
    return [run(model, [source], target and [target])[0] for source, target in pairs]


def assert_batches_change_nothing(model, sources, targets=None, **padding):
    together = run(model, sources, targets, **padding)
    torch.testing.assert_close(together, one_by_one(model, sources, targets), **CLOSE)


def assert_masked_is_truncated(model, sources, targets=None):
    """The last two tokens turned into padding give what the shorter sentence gives."""
    cut = [s[:-2] for s in sources]
    masked = run(model, [c + [PAD, PAD] for c in cut], targets)
    torch.testing.assert_close(masked, run(model, cut, targets), **CLOSE)


def assert_decoding_is_teacher_forcing(model, sources, targets, side="right"):
    """Token by token, outputs and alignments."""
    source, target = batch(sources, side), batch(targets)
    with torch.no_grad():
        forced, extra = model(source, None, target)
        encoded, state = model.encoder(source), {}
        for t in range(target.size(1)):
            step, more = model.decoder(target[:, : t + 1], encoded, state)
            real, maps = target[:, t].ne(PAD), [each["attn"][0] for each in (more, extra)]
            torch.testing.assert_close(step[real, 0], forced[real, t], **CLOSE)
            torch.testing.assert_close(maps[0][real, 0], maps[1][real, t])
