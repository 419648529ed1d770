"""The classifier that is fine-tuned: an encoder with RoBERTa's head, its loss and its logits.

The head (Liu et al. 2019; fairseq's RobertaClassificationHead) is dropout, linear d -> d, tanh, dropout,
linear d -> C, on the first token's last state.
"""

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from transformers import AutoModelForMaskedLM

from finetune.tuning.labelled import Encoded, PretrainedEncoder
from pretrain.data.microbatches import count_micro_batches, cut, pack
from pretrain.model.architectures import set_dropout
from pretrain.model.encoder import SentenceEncoder
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
    """Return "fp32" or "bf16"; "auto" is bf16 where there is a GPU, else fp32."""
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
