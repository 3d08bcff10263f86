"""Adversarial self-attention as a term of a loss, and the baselines it is compared with."""
