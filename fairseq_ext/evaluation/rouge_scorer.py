"""`fairseq-generate --scoring rouge`: as `fairseq-ext score --metrics rouge` of its output."""

from dataclasses import dataclass

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

UNKNOWN = "<<unk>>"  # in a reference: a word that is not in the dictionary
UNMATCHED = "0unknown0"  # stands for it, since <unk> in a hypothesis is no such word


@dataclass
class RougeScorerConfig(FairseqDataclass):
    """There is nothing to choose: stemmed and unstemmed scores are both given."""


@register_scorer("rouge", dataclass=RougeScorerConfig)
class RougeScorer(BaseScorer):
    """ROUGE-1, -2 and -L F1 of all sentences; as one number, stemmed ROUGE-L.

    Words of a reference that are not in the dictionary are not seen, and count as one word each.

    Raises:
        UsageError: when the score is asked for, if words are still split into subwords.
    """

    def add_string(self, ref: str, pred: str) -> None:
        super().add_string(ref.replace(UNKNOWN, UNMATCHED), pred)

    def score(self) -> float:
        return self._values("rouge-l")[0]

    def result_string(self) -> str:
        found = [
            "/".join(f"{value:.2f}" for value in self._values(names))
            for names in ("rouge", "rouge-unstemmed")
        ]
        said = "ROUGE-1/2/L F1 = {} (stemmed), {} (unstemmed)".format(*found)
        if unknown := sum(UNMATCHED in line for line in self.ref):
            said += f"; {unknown} references hold unknown words, score them with fairseq-ext score"
        return said

    def _values(self, names: str) -> list[float]:
        from fairseq_ext.evaluation import metrics
        from fairseq_ext.evaluation import subword_marks as subwords  # slow, and rarely needed

        for side in (self.ref, self.pred):
            subwords.refuse_subwords("the output", side)
        scorers = [metrics.METRICS[name].make(False, "en") for name in metrics.expand([names])]
        return [each.value(each.statistics(self.pred, self.ref).sum(0)) for each in scorers]
