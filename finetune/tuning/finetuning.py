"""Fine-tune an encoder on labelled sentences or pairs, packed: one row of tokens a step, no padding.

Everything random is a function of (seed, epoch) for the order of examples and of (seed, step) for dropout,
so that a run that was stopped at any step and continued gives what an unbroken one gives.

The head (Liu et al. 2019; fairseq's RobertaClassificationHead) is dropout, linear d -> d, tanh, dropout,
linear d -> C, on the first token's last state.
"""

import copy
import hashlib
import io
import json
import math
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import AutoModelForMaskedLM

from finetune.answers import to_text
from finetune.tuning.labelled import Encoded, PretrainedEncoder
from finetune.tuning.recipe import Interrupted, Recipe
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, remove_file, replace_durably, to_json
from pretrain.common.memory import FlatMemory
from pretrain.common.run_folder import read_json_file
from pretrain.data.microbatches import count_micro_batches, cut, pack
from pretrain.model.architectures import set_dropout
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.modules import parameter_groups
from pretrain.model.pooling import pool

REGRESSION = 1
"""Number of outputs that stands for regression: a single number per example, mean squared error."""


class Classifier(nn.Module):
    """An encoder with the head; C outputs, of which REGRESSION (1) means a number."""

    def __init__(self, encoder: SentenceEncoder, outputs: int, dropout: float):
        """Draw the head's weights, N(0, the model's initializer_range), from torch's global generator."""
        super().__init__()
        self.encoder = encoder
        width = encoder.hidden_size
        self.dropout = nn.Dropout(dropout)
        self.dense, self.output = nn.Linear(width, width), nn.Linear(width, outputs)
        for layer in (self.dense, self.output):
            nn.init.normal_(layer.weight, std=getattr(encoder.lm.config, "initializer_range", 0.02))
            nn.init.zeros_(layer.bias)

    def forward(self, ids: Tensor, lengths: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Return logits [N, C] of packed ids int64[T], lengths int64[N] (CPU)."""
        first = pool(self.encoder.states(ids, lengths, None, token_types), "cls")
        with torch.autocast(first.device.type, enabled=False):
            hidden = torch.tanh(self.dense(self.dropout(first)))
            return self.output(self.dropout(hidden))


def build_classifier(source: PretrainedEncoder, outputs: int, dropout: float, seed: int) -> Classifier:
    """Return a copy of the source's encoder, with this dropout, under a head drawn from `seed`."""
    old = source.encoder.lm
    config = copy.deepcopy(old.config)
    set_dropout(config, dropout, dropout)
    dtype = next(old.parameters()).dtype
    lm = AutoModelForMaskedLM.from_config(config, dtype=dtype)
    lm.load_state_dict(old.state_dict())
    lm.requires_grad_(False)
    lm.base_model.requires_grad_(True)
    torch.manual_seed(seed)
    return Classifier(SentenceEncoder(lm, "cls"), outputs, dropout).to(dtype)


def loss_of(logits: Tensor, targets: Tensor, regression: bool) -> Tensor:
    """Return the sum over examples of the cross-entropy, or of the squared error."""
    if regression:
        return mse_loss(logits[:, 0], targets.to(logits.dtype), reduction="sum")
    return cross_entropy(logits, targets, reduction="sum")


def choose_precision(name: str) -> str:
    """Return "fp32" or "bf16"; "auto" is bf16 if there is a GPU, else fp32."""
    if name == "auto":
        return "bf16" if torch.cuda.is_available() else "fp32"
    return name


@torch.inference_mode()
def logits_of(model: Classifier, data: Encoded, token_budget: int, precision: str) -> np.ndarray:
    """Return logits float32[N, C] of the model where it is, without dropout, in the order of `data`."""
    lengths = data.tokens.lengths
    logits = np.empty((len(data), model.output.out_features), np.float32)
    model.eval()
    with model.encoder.weights_unchanged():
        for part in cut(lengths, count_micro_batches(lengths, token_budget)):
            logits[part] = forward(model, data, part, precision).float().cpu().numpy()
    return logits


def forward(model: Classifier, data: Encoded, rows: np.ndarray, precision: str) -> Tensor:
    """Return logits [M, C] of the examples numbered by `rows` (int64[M]), on the model's device."""
    device = model.output.weight.device
    row = pack(data.tokens, rows, device)
    types = None if data.token_types is None else pack(data.token_types, rows, device).ids
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return model(row.ids, row.lengths, types)


CHECKPOINT_SECONDS = 300.0
Scores = Mapping[str, float]
Evaluate = Callable[[Callable[[Encoded], np.ndarray]], tuple[float, Scores, np.ndarray]]
"""From a function (examples -> logits float32[N, C]) to the figure that decides (higher is better), all
scores, and the answers that they follow from, of any shape."""


@dataclass
class Outcome:
    """A finished run; best: the first entry of `curve` with the highest deciding figure."""

    best: dict[str, Any]
    curve: list[dict[str, Any]]
    seconds: float
    answers: np.ndarray
    """Of `evaluate`, at `best`."""

    def figures(self) -> dict[str, Any]:
        """Return all of it for the file of the run's result; the answers as text."""
        return vars(self) | {"answers": to_text(self.answers)}


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Return the rate of update `step` (from 0): a rise over ceil(warmup * steps), then a fall to 0."""
    rise = math.ceil(recipe.warmup * steps)
    if step < rise:
        return recipe.lr * (step + 1) / rise
    return recipe.lr * max(0.0, (steps - step) / max(1, steps - rise))


def _print(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Execution:
    """How a run is computed, beside what its figures follow from."""

    precision: str = "fp32"
    """ "fp32" or "bf16" (autocast; weights and optimizer stay float32)."""
    token_budget: int = 16384
    """Most tokens of one forward pass; a batch that is larger is split and its gradients added."""
    checkpoint: Path | None = None
    """File to continue from. Written at the first step boundary CHECKPOINT_SECONDS after the last, and when a
    stop is requested. Whoever writes the results removes it then: a kill before that costs the time since the
    checkpoint, not the run."""
    stop_code: Callable[[], int] = lambda: 0
    """Called after every step; 0 to continue, or the exit status to stop with: Interrupted is raised once the
    checkpoint is written."""
    keep_weights: bool = False
    """Leave the model at its best, for `FineTuning.logits`; else it is left at its end."""


class FineTuning:
    """One run: a model, training examples, a recipe, a seed, and how the model is evaluated.

    evaluate: every epoch, and every `evaluate_every` updates if not 0. rows: (seed, epoch) -> the
    examples, as many in every epoch; all, shuffled, when None.
    """

    def __init__(
        self,
        model: Classifier,
        train: Encoded,
        recipe: Recipe,
        seed: int,
        evaluate: Evaluate,
        execution: Execution = Execution(),
        *,
        rows: Callable[[int, int], np.ndarray] | None = None,
        evaluate_every: int = 0,
    ):
        self.train_set, self.recipe, self.seed, self.evaluate = train, recipe, seed, evaluate
        self.execution, self.evaluate_every = execution, evaluate_every
        self.rows = rows or (lambda *seed_epoch: np.random.default_rng(seed_epoch).permutation(len(train)))
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        groups = parameter_groups(self.model, recipe.weight_decay)
        self.optimizer = torch.optim.AdamW(
            groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True
        )
        self.steps_per_epoch = -(-len(self.rows(seed, 0)) // recipe.batch_size)
        self.steps = self.steps_per_epoch * recipe.epochs
        if not self.steps:
            raise UserError("there is nothing to train on: no training examples, or no epochs")
        self.step = 0
        self.curve: list[dict[str, Any]] = []
        self.best_weights: dict[str, Tensor] = {}
        self.best_answers = np.empty(0)
        self.loss_sum = self.seconds = 0.0
        self.evaluated_at = 0

    def run(self) -> Outcome:
        """Train, from the checkpoint if there is one; raise Interrupted once a requested stop is saved."""
        self._restore()
        memory = FlatMemory()
        begun = saved = time.monotonic()
        before = self.seconds
        losses = torch.full((), self.loss_sum, dtype=torch.float64, device=self.device)
        epoch, order = -1, np.empty(0, np.int64)
        while self.step < self.steps:
            if self.step // self.steps_per_epoch != epoch:
                epoch = self.step // self.steps_per_epoch
                order = self.rows(self.seed, epoch)
            position = self.step % self.steps_per_epoch * self.recipe.batch_size
            losses += self.update(order[position : position + self.recipe.batch_size])
            if self.device.type == "cpu":
                memory.after_step()
            epoch_ends = self.step % self.steps_per_epoch == 0
            if epoch_ends or (self.evaluate_every and self.step % self.evaluate_every == 0):
                self._evaluate(float(losses) / (self.step - self.evaluated_at))
                losses.zero_()
                self.evaluated_at = self.step
            self.seconds = before + time.monotonic() - begun
            code = self.execution.stop_code()
            checkpoint = self.execution.checkpoint
            if checkpoint is not None and (code or time.monotonic() - saved >= CHECKPOINT_SECONDS):
                self.loss_sum = float(losses)
                self._save(checkpoint)
                saved = time.monotonic()
            if code:
                raise Interrupted(code)
        best = self.curve[self._best()]
        if self.execution.keep_weights:
            self.model.load_state_dict(self.best_weights)
        return Outcome(best, self.curve, self.seconds, self.best_answers)

    def logits(self, data: Encoded) -> np.ndarray:
        """Return logits float32[N, C] of the model as it is, without dropout, in the order of `data`."""
        return logits_of(self.model, data, self.execution.token_budget, self.execution.precision)

    def update(self, rows: np.ndarray) -> Tensor:
        """Update the model on these examples; return their mean loss, on the device."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, self.step, self.steps)
        torch.manual_seed(int(np.random.SeedSequence([self.seed, self.step]).generate_state(1)[0]))
        self.model.train()
        lengths = self.train_set.tokens.lengths[rows]
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with self.model.encoder.weights_unchanged():
            for part in cut(lengths, count_micro_batches(lengths, self.execution.token_budget)):
                logits = forward(self.model, self.train_set, rows[part], self.execution.precision)
                targets = torch.from_numpy(self.train_set.known_targets[rows[part]]).to(self.device)
                loss = loss_of(logits, targets, logits.shape[1] == REGRESSION) / len(rows)
                loss.backward()
                total += loss.detach()
        if recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def _evaluate(self, loss: float) -> None:
        if not math.isfinite(loss):
            at = f"by update {self.step} (seed {self.seed})"
            raise UserError(f"the loss is not finite {at}: lower --lr, or --precision fp32")
        value, scores, answers = self.evaluate(self.logits)
        epoch = self.step / self.steps_per_epoch
        entry = {"epoch": epoch, "step": self.step, "loss": loss, "value": float(value)}
        self.curve.append({**entry, "scores": dict(scores)})
        if self._best() == len(self.curve) - 1:
            self.best_answers = answers
            if self.execution.keep_weights:
                self.best_weights = {
                    name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
                }
        figures = "  ".join(f"{name} {score:.2f}" for name, score in scores.items())
        _print(f"epoch {epoch:g} of {self.recipe.epochs}: loss {loss:.4f}  {figures}")

    def _best(self) -> int:
        values = [-math.inf if math.isnan(entry["value"]) else entry["value"] for entry in self.curve]
        return values.index(max(values))

    _PLAIN = ("step", "curve", "loss_sum", "evaluated_at", "seconds")

    def _save(self, checkpoint: Path) -> None:
        state = {name: getattr(self, name) for name in self._PLAIN}
        state |= {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_weights": self.best_weights,
            "best_answers": torch.from_numpy(self.best_answers),
        }
        write_tensors(checkpoint, state)

    def _restore(self) -> None:
        checkpoint = self.execution.checkpoint
        if checkpoint is None or not checkpoint.is_file():
            return
        state = read_tensors(checkpoint)
        no_model = self.execution.keep_weights and not state["best_weights"]
        if state["curve"] and (no_model or "best_answers" not in state):
            # saved by a run that did not keep them; the last epoch's must not stand in for them
            _print(f"{checkpoint.name} lacks the best epoch's model or answers: starting anew")
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best_weights = state["best_weights"]
        self.best_answers = state["best_answers"].numpy() if state["curve"] else self.best_answers
        for name in self._PLAIN:
            setattr(self, name, state[name])
        _print(f"continuing at update {self.step} of {self.steps} ({checkpoint.name})")


def write_tensors(path: Path, state: Mapping[str, Any]) -> None:
    """Save a state of tensors and plain values, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    make_folder(path.parent)
    replace_durably(path, buffer.getvalue())


def read_tensors(path: Path) -> dict[str, Any]:
    """Read what `write_tensors` saved, on the CPU."""
    try:
        with zipfile.ZipFile(path) as file:  # torch itself does not look at the checksums that it writes
            if damaged := file.testzip():
                raise ValueError(f"the checksum of {damaged} differs")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it, to compute it again") from error


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of all that a run's result depends on, for the file's name."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]


def checkpoint_of(path: Path) -> Path:
    """Return the file of the state that a run is continued from, by the file of its result."""
    return path.with_suffix(".checkpoint")


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run, then remove its checkpoint: a kill between the two costs no training."""
    make_folder(path.parent)
    replace_durably(path, to_json(result))
    remove_file(checkpoint_of(path))


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the result of a run (JSON); None if there is none yet."""
    remedy = "remove it, to compute the run again"
    result = read_json_file(path, remedy) if path.is_file() else None
    if not isinstance(result, dict | None):
        raise UserError(f"{path} is not a run's result; {remedy}")
    return result
