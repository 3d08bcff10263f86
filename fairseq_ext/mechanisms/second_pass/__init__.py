"""Second passes over the sentences of a batch, and adversaries that choose what these mask.

Wu et al. 2023, "Adversarial Self-Attention for Language Understanding".
"""

from fairseq_ext.mechanisms.second_pass import adversary, passes  # noqa: F401 (registers)
