"""FreeLB (Zhu et al. 2020) and SMART (Jiang et al. 2020): adversarial noise on embeddings."""

from typing import Any

import torch
from fairseq.utils import get_rng_state, set_rng_state
from torch import Tensor

from fairseq_ext.attention.model_report import get_model_report
from fairseq_ext.criterions.adversarial.divergence import Compared, Divergence, symmetric_kl, wide
from fairseq_ext.criterions.terms import Log, Step, unwrapped

SCALE = 2.0**14  # of a loss whose gradient is computed in float16


class Noise:
    """delta, added to embedded tokens; of sentence b it has a Frobenius norm of at most `radius`.

    Args:
        one_dropout: this noise and those that `ascend` makes of it have the same dropout.

    Attributes:
        delta: [B, S, C], 0 at padding; drawn from U(-radius, radius) / sqrt(n C), for n tokens,
            when embeddings are first seen.
        random: the state of random numbers right after that, None unless `one_dropout`.
    """

    def __init__(self, radius: float, one_dropout: bool = False) -> None:
        self.radius, self.one_dropout = radius, one_dropout
        self.delta: Tensor | None = None
        self.random: dict[str, Any] | None = None

    def __call__(self, embedded: Tensor, padding: Tensor) -> Tensor:
        """embedded: [B, S, C]. padding: [B, S]."""
        if self.delta is None:
            self.delta = self._drawn(embedded, padding).requires_grad_()
            self.random = get_rng_state() if self.one_dropout else None
        elif self.random is not None:
            set_rng_state(self.random)
        return embedded + self.delta

    def _drawn(self, embedded: Tensor, padding: Tensor) -> Tensor:
        """delta_0, [B, S, C]."""
        real = wide((~padding).unsqueeze(-1).to(embedded))  # n C leaves the range of 16 bits
        numbers = (real.sum((1, 2), keepdim=True) * embedded.size(-1)).clamp(min=1)
        drawn = torch.empty_like(embedded, dtype=real.dtype)
        drawn = drawn.uniform_(-self.radius, self.radius) * real / numbers.sqrt()
        return drawn.to(embedded.dtype)

    def ascend(self, loss: Tensor, step_size: float, keep: bool) -> "Noise":
        """The noise after a step of this length up the gradient of each sentence, projected.

        No other gradient is computed.

        Args:
            keep: the graph of the loss is used again.
        """
        assert self.delta is not None  # the loss is of a pass with it
        gradient, before = (wide(x.detach()) for x in (self._slope(loss, keep), self.delta))
        moved = before + step_size * gradient / _norms(gradient)
        moved = moved * (self.radius / _norms(moved)).clamp(max=1)
        further = Noise(self.radius, self.one_dropout)
        further.delta, further.random = moved.to(self.delta.dtype).requires_grad_(), self.random
        return further

    def _slope(self, loss: Tensor, keep: bool) -> Tensor:
        """The gradient to delta, but for its length: unscaled, much of it is 0 in float16."""
        assert self.delta is not None
        if self.delta.dtype == torch.float16 or torch.is_autocast_enabled():
            [slope] = torch.autograd.grad(loss * SCALE, self.delta, retain_graph=True)
            if slope.isfinite().all():
                return slope
        return torch.autograd.grad(loss, self.delta, retain_graph=keep)[0]


def _norms(x: Tensor) -> Tensor:
    """[B, S, C] -> [B, 1, 1], never 0."""
    return x.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)[:, None, None]


class FreeLB:
    """(1 / K) sum_k L(delta_k), delta_0 by chance and each next one a step up L from the last.

    All passes have one dropout, as Zhu et al. have it: else the noise is fitted to another model.
    """

    def __init__(self, cfg: Any, task: Any) -> None:
        self.steps = cfg.asa_steps or 2
        self.radius, self.step_size = cfg.asa_radius, cfg.asa_step_size
        self.noise = Noise(self.radius)  # of the step that is made

    def begin(self) -> None:
        """Nothing to do."""

    def keywords(self, updates: int) -> dict[str, Any]:
        self.noise = Noise(self.radius, one_dropout=True)
        return {"noise": self.noise}

    def loss(self, step: Step) -> tuple[Tensor, Log]:
        noise, losses = self.noise, [step.loss]
        for _ in range(self.steps - 1):
            noise = noise.ascend(losses[-1], self.step_size, keep=True)
            losses.append(step.again(noise=noise)[0])
        mean = torch.stack(losses).mean()
        return mean - step.loss, {"asa_gain": (mean - step.loss).detach()}


def both_kl(clean: Tensor, other: Tensor) -> Tensor:
    """KL in both directions, their sum."""
    return 2 * symmetric_kl(clean, other)


class Smart:
    """alpha l(f(x + delta), f(x)) + mu l(f(x), g(x)), l both KLs (squared for numbers).

    delta is K steps up l from chance; g a running mean of the models so far.
    """

    def __init__(self, cfg: Any, task: Any) -> None:
        self.alpha, self.mu, self.beta = cfg.asa_alpha, cfg.smart_mu, cfg.smart_beta
        self.steps = cfg.asa_steps or 1
        self.radius, self.step_size = cfg.asa_radius, cfg.asa_step_size
        self.divergence, self.task, self.updates = Divergence(both_kl), task, -1
        self.mean: dict[str, Tensor] | None = None

    def begin(self) -> None:
        """Nothing to do."""

    def keywords(self, updates: int) -> dict[str, Any]:
        return {}

    def loss(self, step: Step) -> tuple[Tensor, Log]:
        clean, noise = step.compared(step.output), Noise(self.radius)
        fixed = [each._replace(scores=each.scores.detach()) for each in clean]
        for _ in range(self.steps):
            noise = noise.ascend(  # of a loss without a name, so that its graph is freed
                self.divergence.total(step.compared(step.again(noise=noise)[1]), fixed),
                self.step_size,
                keep=False,
            )
        noisy = step.compared(step.again(noise=noise)[1])
        apart = self.divergence.total(noisy, clean)
        loss = self.alpha * apart
        if self.mu:
            loss = loss + self.mu * self.divergence.total(clean, self._of_mean(step))
        return loss, {"asa_divergence": apart.detach()}

    def _of_mean(self, step: Step) -> list[Compared]:
        """What the mean of the models of all updates so far predicts, without dropout."""
        model, mean = step.model, self._mean(step)
        model.eval()
        with torch.no_grad():
            output = step.again(parameters=mean)[1]
        model.train()
        return step.compared(output)

    def _mean(self, step: Step) -> dict[str, Tensor]:
        """Updated, once an update; kept in checkpoints with what the task keeps."""
        named = unwrapped(step.model).named_parameters()
        now = {name: p.detach() for name, p in named if p.requires_grad}
        if self.mean is None:
            before = get_model_report(self.task).mean_parameters or now
            self.mean = {n: wide(before[n].to(p.device)).clone() for n, p in now.items()}
            get_model_report(self.task).mean_parameters = self.mean
        if step.updates != self.updates:
            for name, mean in self.mean.items():
                mean.lerp_(now[name].to(mean), 1 - self.beta)
        self.updates = step.updates
        return {name: mean.to(now[name]) for name, mean in self.mean.items()}
