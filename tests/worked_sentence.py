"""The sentence on which roles of heads are worked out by hand."""

import torch

from fairseq_ext.mechanisms.roles.role_masks import EXACT, MAJOR, NEVER_RARE, NO_WORD, TokenFeatures

# The quick fox never chased dogs !, between START and END
HEADS = [3, 3, 5, 5, 0, 5, 5]  # from 1, 0: the root
RELATIONS = [0, MAJOR | EXACT, MAJOR | EXACT, 0, 0, MAJOR | EXACT, 0]
IDF = [10, 30, 40, 20, 35, 35, 0]  # in tenths


def make_sentence(separators=(7,), idf=IDF, cut=None, padding=2, left=False):
    """Return the worked sentence, cut short to so many positions, padded."""
    n = cut or len(IDF) + 2
    parse = [(NO_WORD, NO_WORD, 0)]
    parse += [(i, HEADS[i] - 1, RELATIONS[i]) for i in range(len(IDF))] + [(NO_WORD, NO_WORD, 0)]
    columns = {
        "real": [True] * n,
        "ends": [place in (0, 8) for place in range(n)],
        "begins": [1 <= place <= 7 for place in range(n)],
        "separators": [place in separators for place in range(n)],
        "rarity": [NEVER_RARE, *idf, NEVER_RARE][:n],
        "parse": parse[:n],
    }
    blank = {"rarity": NEVER_RARE, "parse": (NO_WORD, NO_WORD, 0)}
    for name, column in columns.items():
        pads = [blank.get(name, False)] * padding
        columns[name] = torch.tensor([pads + column if left else column + pads])
    return TokenFeatures(**columns)
