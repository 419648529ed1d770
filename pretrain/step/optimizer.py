"""Optimizers and learning-rate schedules."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.common.errors import UserError
from pretrain.config.run import TrainConfig
from pretrain.model.layer import layer_matrices
from pretrain.model.modules import parameter_groups


def build_optimizer(module: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """Build AdamW, LAMB or Muon over `module`, of those who `config.optimizer_code` names.

    All keep the same state under the same names, so a run may be resumed with those of another.

    Raises:
        UserError: theirs is not installed, does not compile, or is not for this device.
    """
    groups = parameter_groups(module, config.weight_decay, config.head_lr_scale)
    settings: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    if config.optimizer_code == "torch":
        if config.optimizer == "lamb":
            return Lamb(groups, **settings)
        if config.optimizer == "muon":
            return MuonWithAdamW(groups, layer_matrices(module), **settings)
        # DeepSpeed warns of kinds that it does not know, and gives its optimizers one parameter a group
        return (torch.optim.AdamW if config.zero else AdamW)(groups, **settings, fused=True)
    code = f"train.optimizer_code={config.optimizer_code}"
    if device.type != "cuda":
        raise UserError(f"{code} is for GPUs, and there is none: leave it at torch")
    try:
        from apex.optimizers import FusedAdam, FusedLAMB

        if config.optimizer == "lamb":
            return FusedLAMB(groups, **settings, max_grad_norm=0.0)
        return FusedAdam(groups, **settings, adam_w_mode=True)
    except Exception as error:  # extensions raise what comes to hand
        why = f"{type(error).__name__}: {error}"
        remedy = "build NVIDIA's apex from its source (the package of that name on PyPI is something else)"
        raise UserError(f"{code} cannot be used here ({why}); {remedy}, or leave it at torch") from error


class AdamW(torch.optim.AdamW):
    """torch's own, fused, without what its Python looks for in every parameter at every step.

    That is a millisecond or two for 200 parameters, during which a GPU may have nothing to do. From the
    second step on the learning rate is rounded to float32, as which a CUDA graph reads it.
    """

    @torch.no_grad()
    def step(self, closure=None):
        if not self.is_set_up() or any(
            p.grad is None for group in self.param_groups for p in group["params"]
        ):
            return super().step(closure)  # torch makes the state
        rates = [float(np.float32(group["lr"])) for group in self.param_groups]
        return self.update(rates, getattr(self, "found_inf", None))

    def is_set_up(self) -> bool:
        """Return whether every parameter has its state."""
        return all(self.state.get(p) for group in self.param_groups for p in group["params"])

    def update(self, rates: Sequence[float] | Sequence[Tensor], found_inf: Tensor | None) -> None:
        """Update all parameters by their gradients.

        rates: of the groups. found_inf: if it is 1.0, nothing changes.
        """
        for group, rate in zip(self.param_groups, rates, strict=True):
            states = [self.state[p] for p in group["params"]]
            if not states:
                continue
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                group["params"],
                [p.grad for p in group["params"]],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                amsgrad=False,
                lr=rate,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
                grad_scale=None,
                found_inf=found_inf,
            )
            if found_inf is not None:
                torch._foreach_sub_(steps, [found_inf] * len(steps))


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2) in torch, for any device.

    m, v as in Adam; r = m_hat / (sqrt(v_hat) + eps) + decay * w; w -= lr * ||w|| / ||r|| * r, the ratio being
    1 if a norm is 0.
    """

    def __init__(self, params, lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                count = float(state["step"])
                mean = state["exp_avg"].lerp_(p.grad, 1 - beta1)
                square = state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                denominator = (square / (1 - beta2**count)).sqrt_().add_(group["eps"])
                update = (mean / (1 - beta1**count)).div_(denominator).add_(p, alpha=group["weight_decay"])
                weight_norm, update_norm = torch.linalg.vector_norm(p), torch.linalg.vector_norm(update)
                ratio = torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
                p.add_(update * ratio, alpha=-group["lr"])


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for some matrices and AdamW for all other parameters, as one optimizer.

    Both are torch's. Muon takes the momentum 0.95 with Nesterov's step, and 5 Newton-Schulz iterations in
    bfloat16, as its reference does. The two share `param_groups` and `state` with this one, which is what
    schedules, engines and checkpoints read.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        matrices: Collection[int],
        lr: float,
        betas: tuple[float, float],
        eps: float,
    ):
        """
        Args:
            groups: as `parameter_groups` makes them.
            matrices: id of each parameter that Muon updates.
        """
        parts: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
        for group in groups:
            for part, of_muon in zip(parts, (True, False)):
                if chosen := [p for p in group["params"] if (id(p) in matrices) == of_muon]:
                    part.append(group | {"params": chosen})
        # Updates as long as AdamW's, 0.2 sqrt(max(rows, columns)): equation 4 of Liu et al. 2025 (Moonlight)
        self.muon = torch.optim.Muon(parts[0], lr=lr, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(parts[1], lr=lr, betas=betas, eps=eps, fused=True)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})
        self.muon.state = self.adamw.state = self.state

    def step(self, closure=None):
        self.muon.step()
        self.adamw.step()


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of optimizer step `step` (from 0): warm-up, then decay to 0 at `steps`.

    wsd is warm-up, stable, decay (Hu et al. 2024, MiniCPM, equation 1); its decay by 1 - sqrt is that of
    Haegele et al. 2024, equation 3. A pure function of the step, so that a resumed run has no scheduler state
    to lose.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    begins = config.decay_begins
    if step < begins or config.schedule == "constant":
        return config.lr
    done = (step - begins) / max(1, config.steps - begins)
    if config.schedule == "cosine":
        return config.lr * (0.5 * (1 + math.cos(math.pi * done)))
    by_root = config.schedule == "wsd" and config.decay_shape == "1-sqrt"
    return config.lr * (1 - math.sqrt(done) if by_root else 1 - done)
