"""Byte-pair encoding learned as subword-nmt does (Sennrich et al. 2016), the same merges sooner.

subword-nmt looks through its pairs for each merge. Here pairs wait in lists by how frequent they
are, from the most frequent down: a merge never makes a pair that is more frequent than itself.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Mapping

Symbols = tuple[str, str]

END = "</w>"  # of a word, in the symbol of its last character
FEWEST = 2  # occurrences of a pair that is merged


class _Words:
    """Words as lists of symbols, with how often each pair occurs and in which words."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self.words = [[*word[:-1], word[-1] + END] for word in vocabulary]
        self.counts = list(vocabulary.values())
        self.pairs: dict[Symbols, int] = defaultdict(int)
        self.where: dict[Symbols, set[int]] = defaultdict(set)
        for number, word in enumerate(self.words):
            for pair in zip(word, word[1:], strict=False):
                self.pairs[pair] += self.counts[number]
                self.where[pair].add(number)

    def merge(self, pair: Symbols) -> list[Symbols]:
        """Join a pair wherever it is; the pairs that occur more or less often now."""
        changes: dict[Symbols, int] = defaultdict(int)
        for number in self.where.pop(pair):
            self._merge_in(number, pair, changes)
        self.pairs[pair] = changes[pair] = 0
        for other, change in changes.items():
            self.pairs[other] += change
        return [other for other, change in changes.items() if change]

    def _merge_in(self, number: int, pair: Symbols, changes: dict[Symbols, int]) -> None:
        word, count, (first, second) = self.words[number], self.counts[number], pair
        joined, place = first + second, 0
        while place < len(word) - 1:
            if word[place] == first and word[place + 1] == second:
                if place:
                    changes[word[place - 1], first] -= count
                    changes[word[place - 1], joined] += count
                    self.where[word[place - 1], joined].add(number)
                if place < len(word) - 2:
                    changes[second, word[place + 2]] -= count
                    changes[joined, word[place + 2]] += count
                    self.where[joined, word[place + 2]].add(number)
                word[place : place + 2] = [joined]
            place += 1


def learn(vocabulary: Mapping[str, int]) -> Iterator[Symbols]:
    """Merges, the most frequent pair first, of equally frequent ones the last in the alphabet.

    Args:
        vocabulary: how often each word occurs.
    """
    words = _Words(vocabulary)
    waiting: dict[int, list[Symbols]] = defaultdict(list)
    for pair, count in words.pairs.items():
        waiting[count].append(pair)
    for count in range(max(waiting, default=0), FEWEST - 1, -1):
        ready = sorted({pair for pair in waiting.pop(count, ()) if words.pairs[pair] == count})
        while ready:
            pair = ready.pop()
            if words.pairs[pair] != count:  # a merge changed it
                continue
            yield pair
            for changed in words.merge(pair):
                if words.pairs[changed] == count:
                    insort(ready, changed)
                else:
                    waiting[words.pairs[changed]].append(changed)
