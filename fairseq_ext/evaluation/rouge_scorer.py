"""`fairseq-generate --scoring rouge`: the numbers of `fairseq-ext score --metrics rouge`."""

from dataclasses import dataclass

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

UNKNOWN = "<<unk>>"  # in a reference: a word that is not in the dictionary
UNMATCHED = "0unknown0"  # replaces it, since <unk> in a hypothesis is another word


@dataclass
class RougeScorerConfig(FairseqDataclass):
    """Empty configuration: stemmed and unstemmed scores are both given."""


@register_scorer("rouge", dataclass=RougeScorerConfig)
class RougeScorer(BaseScorer):
    """ROUGE-1, -2 and -L F1 of all sentences; as one number, stemmed ROUGE-L.

    Words of a reference that are not in the dictionary cannot be matched, and count as one word
    each.

    Raises:
        UsageError: rouge-score is not installed, or, when the score is asked for, words are still
            split into subwords.
    """

    def __init__(self, cfg: RougeScorerConfig) -> None:
        from fairseq_ext.evaluation.corpus_scorers import require_rouge  # slow

        super().__init__(cfg)
        require_rouge()

    def add_string(self, ref: str, pred: str) -> None:
        """Add a sentence."""
        super().add_string(ref.replace(UNKNOWN, UNMATCHED), pred)

    def score(self) -> float:
        """Return stemmed ROUGE-L, from 0 to 100."""
        return self._compute("rouge-l")[0]

    def result_string(self) -> str:
        """Return all scores, and how many references hold unknown words."""
        stemmed, unstemmed = (
            "/".join(f"{value:.2f}" for value in self._compute(names))
            for names in ("rouge", "rouge-unstemmed")
        )
        text = f"ROUGE-1/2/L F1 = {stemmed} (stemmed), {unstemmed} (unstemmed)"
        if unknown := sum(UNMATCHED in line for line in self.ref):
            text += f"; {unknown} references hold unknown words, score them with fairseq-ext score"
        from fairseq_ext.evaluation.corpus_scorers import Rouge

        return "; ".join(filter(None, (text, Rouge.describe_empty(self.ref))))

    def _compute(self, name: str) -> list[float]:
        from fairseq_ext.evaluation import metrics, subword_marks  # slow, and rarely needed

        for side in (self.ref, self.pred):
            subword_marks.refuse_subwords("the output", side)
        scorers = [metrics.METRICS[n].make(False, "en") for n in metrics.expand_groups([name])]
        return [each.value(each.statistics(self.pred, self.ref).sum(0)) for each in scorers]
