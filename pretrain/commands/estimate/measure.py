"""Count a model's parameters, on a model without storage, and the activations that a GPU keeps of a token."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from augment.core.pretrained import pretrained
from pretrain.commands.estimate.formulas import FLOAT, ModelSize
from pretrain.config.run import Config
from pretrain.model.architectures import architecture_of
from pretrain.model.encoder import build_encoder
from pretrain.model.layer import layer_matrices
from pretrain.objectives import build_objective
from pretrain.step.model import SentenceModel
from pretrain.telemetry.throughput import model_flops

MOMENTS = 2
"""Elements that AdamW and LAMB keep for each parameter; Muon keeps one, its momentum."""
PERSISTENT = 100_000
"""Elements below which ZeRO 3 keeps a tensor whole (stage3_param_persistence_threshold decides otherwise)."""
HEAD_BYTES = 16
"""Bytes for each masked token and channel of the masked-language head: dense, GELU and norm."""
GRADIENTS = 2
"""Gradients of the widest activation that a backward pass holds at once, float32."""


@dataclass(frozen=True)
class PlannedTokenizer:
    """What a model asks of a tokenizer, if there is none yet."""

    size: int
    pad_token_id: int = 0
    cls_token_id: int = 1
    sep_token_id: int = 2
    mask_token_id: int = 3
    all_special_ids: tuple[int, ...] = (0, 1, 2, 3)

    def __len__(self) -> int:
        return self.size


def architecture(config: Config) -> dict[str, Any]:
    """Return the sizes of the run's encoder, those of its checkpoint if `model.init` names one."""
    if config.model.init is not None:
        return architecture_of(pretrained(AutoConfig, config.model.init))
    return config.model.architecture()


def measure_model(config: Config, tokenizer: Any, length: int, precision: str) -> ModelSize:
    """Count a run's parameters, its activations for each token, and its FLOPs.

    Args:
        tokenizer: of the data, or a `PlannedTokenizer`.
        length: mean tokens of a sequence.
        precision: of the encoder: fp32, bf16 or fp16.
    """
    sizes = architecture(config)
    labels = max(2, (config.augment.augmented or "").count("|") + 1)
    alone = _without_frozen_encoders(config)
    with torch.device("meta"):
        encoder = build_encoder(sizes, tokenizer, config.model.pooling)
        model = SentenceModel(encoder, build_objective(alone, encoder, tokenizer, labels))
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    matrices = _elements_of_matrices(model)
    copies = 0 if precision == "fp32" else 2 * matrices
    diffcse, guide = config.objective.diffcse, 0
    if "diffcse" in config.objective.parts and diffcse.replaced_token_weight > 0:
        # a second encoder is trained, without its head
        counts += [(p.numel(), True) for p in encoder.lm.base_model.parameters()]
        matrices += _elements_of_matrices(encoder.lm.base_model)
    if (source := config.objective.guide) is not None:
        with torch.device("meta"):
            guiding = build_encoder(architecture_of(pretrained(AutoConfig, source)), tokenizer)
        guide = sum(parameter.numel() for parameter in guiding.parameters())
    trained = sum(count for count, has_gradient in counts if has_gradient)
    zero = config.deepspeed.get("zero_optimization", {})
    persistent = int(zero.get("stage3_param_persistence_threshold", PERSISTENT))
    flops = model_flops(encoder.lm)
    return ModelSize(
        trained=trained,
        frozen=sum(count for count, has_gradient in counts if not has_gradient),
        moments=MOMENTS * trained - (matrices if config.train.optimizer == "muon" else 0),
        small=sum(count for count, has_gradient in counts if has_gradient and count < persistent),
        largest=max(count for count, _ in counts),
        width=encoder.hidden_size,
        vocabulary=encoder.vocab_size,
        copies=copies,
        token_bytes=token_bytes(sizes, precision, config.train.activation_checkpointing),
        masked_bytes=HEAD_BYTES * encoder.hidden_size,
        token_flops=flops.forward([length]) / length,
        masked_flops=flops.per_masked_token,
        guide=guide,
    )


def _elements_of_matrices(module: nn.Module) -> int:
    """Count the parameters of the matrices of layers: those that Muon updates, with one moment each."""
    chosen = layer_matrices(module)
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) in chosen)


def _without_frozen_encoders(config: Config) -> Config:
    """Return the configuration without the weights to read of DiffCSE's generator and of a guide."""
    config = config.model_copy(deep=True)
    config.objective.diffcse.replaced_token_weight = 0.0
    if config.objective.guide is not None:
        config.objective.false_negatives.guide, config.objective.retain.model = "self", None
    return config


def token_bytes(sizes: dict[str, Any], precision: str, recomputes: bool) -> int:
    """Return the bytes that a GPU's programs keep of a token, as they are counted on tensors without data.

    Of a layer: its input and the norms' in float32, products in the encoder's precision.

    Args:
        recomputes: whether layers are computed again (`train.activation_checkpointing`).
    """
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]
    if sizes["type"] == "modernbert":  # has a gate
        inner = 3 * inner // 2
    if precision == "fp32":
        layer, layer_input = 32 * width + 8 * inner, 4 * width
    else:
        layer, layer_input = 20 * width + 4 * inner, 6 * width
    of_layers = sizes["layers"] * layer_input + layer if recomputes else sizes["layers"] * layer
    return of_layers + 8 * width + GRADIENTS * FLOAT * sizes["intermediate_size"]
