"""Adversarial noise on embeddings: FreeLB (Zhu et al. 2020) and SMART (Jiang et al. 2020)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq.utils import get_rng_state, set_rng_state
from torch import Tensor

from fairseq_ext.criterions.divergence import Divergence, Predictions, symmetric_kl, widen
from fairseq_ext.criterions.logging_outputs import Log
from fairseq_ext.criterions.terms import Term, TrainingStep, unwrap
from fairseq_ext.models.model_report import SMART_MEAN

LOSS_SCALE = 2.0**14
"""The factor of a loss whose gradient is computed in float16."""


@dataclass(eq=False)
class Noise:
    """A perturbation delta that a model adds to its embedded tokens.

    The Frobenius norm of each sentence's delta is at most `radius`.

    Args:
        same_dropout: this noise and the noises that `ascend` makes of it see the same dropout.

    Attributes:
        delta: [B, S, C], 0 at padding. It is sampled from U(-radius, radius) / sqrt(n C), for n
            tokens, when the noise first sees embeddings.
        random_state: the state of the random numbers right after that; None unless `same_dropout`.
    """

    radius: float
    same_dropout: bool = False
    delta: Tensor | None = None
    random_state: dict[str, Any] | None = None

    def __call__(self, embedded: Tensor, padding: Tensor) -> Tensor:
        """Return `embedded` [B, S, C] + delta, which is 0 where `padding` [B, S] is true."""
        if self.delta is None:
            self.delta = self._sample(embedded, padding).requires_grad_()
            self.random_state = get_rng_state() if self.same_dropout else None
        elif self.random_state is not None:
            set_rng_state(self.random_state)
        return embedded + self.delta

    def _sample(self, embedded: Tensor, padding: Tensor) -> Tensor:
        real = widen((~padding).unsqueeze(-1).to(embedded))  # n C leaves the range of 16 bits
        numbers = (real.sum((1, 2), keepdim=True) * embedded.size(-1)).clamp(min=1)
        delta = torch.empty_like(embedded, dtype=real.dtype)
        delta = delta.uniform_(-self.radius, self.radius) * real / numbers.sqrt()
        return delta.to(embedded.dtype)

    def ascend(self, loss: Tensor, step_size: float, keep_graph: bool) -> "Noise":
        """Return the noise one step up the gradient of the loss, projected onto the ball.

        The step of each sentence has the length `step_size`. No other gradient is computed.

        Args:
            loss: the loss of a forward pass with this noise.
            keep_graph: whether the graph of the loss is used again.
        """
        assert self.delta is not None  # sampled in that forward pass
        gradient, before = (
            widen(x.detach()) for x in (self._gradient(loss, keep_graph), self.delta)
        )
        delta = before + step_size * gradient / _norms(gradient)
        delta = delta * (self.radius / _norms(delta)).clamp(max=1)
        return replace(self, delta=delta.to(self.delta.dtype).requires_grad_())

    def _gradient(self, loss: Tensor, keep_graph: bool) -> Tensor:
        """Return the gradient to delta, up to a factor: unscaled, much of it is 0 in float16."""
        assert self.delta is not None
        if self.delta.dtype == torch.float16 or torch.is_autocast_enabled():
            [gradient] = torch.autograd.grad(loss * LOSS_SCALE, self.delta, retain_graph=True)
            if gradient.isfinite().all():
                return gradient
        return torch.autograd.grad(loss, self.delta, retain_graph=keep_graph)[0]


def _norms(x: Tensor) -> Tensor:
    """Return Frobenius norms, [B, S, C] -> [B, 1, 1], never 0."""
    return x.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)[:, None, None]


class NoiseTerm(Term):
    """A term that takes steps up a loss by noise on embeddings."""

    reruns = True
    default_steps: int

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.steps = cfg.asa_steps or self.default_steps


class FreeLB(NoiseTerm):
    """(1 / K) sum_k L(delta_k), where delta_0 is random and each next delta is a step up L.

    All passes have the same dropout, as in Zhu et al.: otherwise the noise would fit another model.
    """

    default_steps = 2

    def keywords(self, updates: int) -> dict[str, Any]:
        """Return the noise of the objective's own forward pass, delta_0."""
        self.noise = Noise(self.cfg.asa_radius, same_dropout=True)
        return {"noise": self.noise}

    def loss(self, step: TrainingStep) -> tuple[Tensor, Log]:
        """Return the difference of the mean loss of all passes and the loss of the first."""
        noise, losses = self.noise, [step.loss + step.further_loss(step.output)]
        for _ in range(self.steps - 1):
            noise = noise.ascend(losses[-1], self.cfg.asa_step_size, keep_graph=True)
            loss, output = step.rerun(noise=noise)
            losses.append(loss + step.further_loss(output))
        gain = torch.stack(losses).mean() - losses[0]
        return gain, {"asa_gain": gain.detach()}


def sum_of_kls(clean: Tensor, other: Tensor) -> Tensor:
    """Return the sum of both KL divergences, [N]."""
    return 2 * symmetric_kl(clean, other)


class Smart(NoiseTerm):
    """alpha l(f(x + delta), f(x)) + mu l(f(x), g(x)), where l sums both KLs (squared for numbers).

    delta is K steps up l from a random start. g is a running mean of the models so far.
    """

    default_steps = 1

    def __init__(self, cfg: Any, task: Any) -> None:
        super().__init__(cfg, task)
        self.divergence, self.last_update = Divergence(sum_of_kls), -1
        self.mean: dict[str, Tensor] | None = None

    def loss(self, step: TrainingStep) -> tuple[Tensor, Log]:
        """Return both regularisers; log the first as "asa_divergence"."""
        clean, noise = step.select_predictions(step.output), Noise(self.cfg.asa_radius)
        fixed = [each._replace(scores=each.scores.detach()) for each in clean]
        for _ in range(self.steps):
            noise = noise.ascend(  # the loss has no name, so that its graph is freed
                self.divergence.total(self._predict(step, noise=noise), fixed),
                self.cfg.asa_step_size,
                keep_graph=False,
            )
        divergence = self.divergence.total(self._predict(step, noise=noise), clean)
        loss, mu = self.cfg.asa_alpha * divergence, self.cfg.smart_mu
        if mu:
            loss = loss + mu * self.divergence.total(clean, self._predict_by_mean(step))
        return loss, {"asa_divergence": divergence.detach()}

    def _predict(self, step: TrainingStep, **changes: Any) -> list[Predictions]:
        return step.select_predictions(step.rerun(**changes)[1])

    def _predict_by_mean(self, step: TrainingStep) -> list[Predictions]:
        """Return the predictions of g, without dropout."""
        parameters = self._update_mean(step)
        step.model.eval()
        with torch.no_grad():
            predictions = self._predict(step, parameters=parameters)
        step.model.train()
        return predictions

    def _update_mean(self, step: TrainingStep) -> dict[str, Tensor]:
        """Return g's parameters. They change once an update and are kept in checkpoints."""
        named = unwrap(step.model).named_parameters()
        current = {name: p.detach() for name, p in named if p.requires_grad}
        if self.mean is None:
            start = self.task.state.state_dict.get(SMART_MEAN) or current
            self.mean = {n: widen(start[n].to(p.device)).clone() for n, p in current.items()}
            self.task.state.merge_state_dict({SMART_MEAN: self.mean})
        if step.updates != self.last_update:
            for name, mean in self.mean.items():
                mean.lerp_(current[name].to(mean), 1 - self.cfg.smart_beta)
        self.last_update = step.updates
        return {name: mean.to(current[name]) for name, mean in self.mean.items()}
