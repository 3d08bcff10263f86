"""FreeLB (Zhu et al. 2020) and SMART (Jiang et al. 2020): adversarial noise on embeddings."""

from typing import Any

import torch
from torch import Tensor

from fairseq_ext.criterions.divergence import Compared, Divergence, symmetric_kl, wide
from fairseq_ext.criterions.terms import Log, Step, unwrapped

MEAN = "smart_mean"  # in checkpoints


class Noise:
    """delta, added to embedded tokens; of sentence b it has a Frobenius norm of at most `radius`.

    Attributes:
        delta: [B, S, C], 0 at padding; drawn from U(-radius, radius) / sqrt(n C), for n tokens,
            when embeddings are first seen.
    """

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.delta: Tensor | None = None

    def __call__(self, embedded: Tensor, padding: Tensor) -> Tensor:
        """embedded: [B, S, C]. padding: [B, S]."""
        if self.delta is None:
            real = wide((~padding).unsqueeze(-1).to(embedded))  # n C leaves the range of 16 bits
            numbers = (real.sum((1, 2), keepdim=True) * embedded.size(-1)).clamp(min=1)
            drawn = torch.empty_like(embedded, dtype=real.dtype)
            drawn = drawn.uniform_(-self.radius, self.radius) * real / numbers.sqrt()
            self.delta = drawn.to(embedded.dtype).requires_grad_()
        return embedded + self.delta

    def ascend(self, loss: Tensor, step_size: float, keep: bool) -> "Noise":
        """The noise after a step of this length up the gradient of each sentence, projected.

        No other gradient is computed.

        Args:
            keep: the graph of the loss is used again.
        """
        assert self.delta is not None  # the loss is of a pass with it
        [gradient] = torch.autograd.grad(loss, self.delta, retain_graph=keep)
        gradient, before = (wide(x.detach()) for x in (gradient, self.delta))
        moved = before + step_size * gradient / _norms(gradient)
        further = Noise(self.radius)
        moved = moved * (self.radius / _norms(moved)).clamp(max=1)
        further.delta = moved.to(self.delta.dtype).requires_grad_()
        return further


def _norms(x: Tensor) -> Tensor:
    """[B, S, C] -> [B, 1, 1], never 0."""
    return x.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)[:, None, None]


class FreeLB:
    """(1 / K) sum_k L(delta_k), delta_0 by chance and each next one a step up L from the last."""

    def __init__(self, cfg: Any, task: Any) -> None:
        self.steps = cfg.asa_steps or 2
        self.radius, self.step_size = cfg.asa_radius, cfg.asa_step_size
        self.noise = Noise(self.radius)  # of the step that is made

    def begin(self) -> None:
        """Nothing to do."""

    def keywords(self, updates: int) -> dict[str, Any]:
        self.noise = Noise(self.radius)
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
            apart = self.divergence.total(step.compared(step.again(noise=noise)[1]), fixed)
            noise = noise.ascend(apart, self.step_size, keep=False)
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
            before = self.task.state.state_dict.get(MEAN, now)
            self.mean = {n: wide(before[n].to(p.device)).clone() for n, p in now.items()}
            self.task.state.merge_state_dict({MEAN: self.mean})
        if step.updates != self.updates:
            for name, mean in self.mean.items():
                mean.lerp_(now[name].to(mean), 1 - self.beta)
        self.updates = step.updates
        return {name: mean.to(now[name]) for name, mean in self.mean.items()}
