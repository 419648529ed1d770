"""Measure what formulas cannot say: parameters of a model, activations of a token, tokens of a batch.

Parameters are counted on a model without storage. Activations are counted on short rows that really run here:
autograd says which tensors it keeps (`saved_tensors_hooks`). Rows of two lengths tell what grows with tokens
from what does not (working copies of weights). For a GPU the encoder has one layer and then two, and the rest
are as the second; what is counted is what the plain kernels keep, of which a GPU's keep a share.
"""

import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from augment.core.pretrained import pretrained
from pretrain.commands.estimate.formulas import ModelSize
from pretrain.common.memory import rounded_rows
from pretrain.config.run import Config
from pretrain.data.microbatches import MicroBatch
from pretrain.model.architectures import architecture_of
from pretrain.model.encoder import SentenceEncoder, build_encoder
from pretrain.model.kernels.native import VARIABLE
from pretrain.model.layer import layer_matrices
from pretrain.objectives import WholeObjective, build_objective
from pretrain.step.model import SentenceModel
from pretrain.telemetry.throughput import model_flops

KEPT_BY_PROGRAMS = {"modernbert": 0.52}
KEPT = 0.67
"""Share of what the plain kernels keep that a GPU's programs keep, by `model.type`, and of the others. It was
counted on tensors without data."""

MOMENTS = 2
"""Elements that AdamW and LAMB keep for each parameter; Muon keeps one, its momentum."""
PERSISTENT = 100_000
"""Elements below which ZeRO 3 keeps a tensor whole (stage3_param_persistence_threshold decides otherwise)."""
ROW = 512
"""Tokens of the shorter row, about; the longer has three times as many."""
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


def measure_model(config: Config, tokenizer: Any, length: int, precision: str, on_gpu: bool) -> ModelSize:
    """Count a run's parameters, its activations for each token, and its FLOPs.

    Args:
        tokenizer: of the data, or a `PlannedTokenizer`.
        length: mean tokens of a sequence.
        precision: of the encoder: fp32, bf16 or fp16.
        on_gpu: measure the kernels of a GPU.
    """
    sizes = architecture(config)
    labels = max(2, (config.augment.augmented or "").count("|") + 1)
    with torch.device("meta"):
        encoder = _encoder(config, sizes, tokenizer)
        model = SentenceModel(encoder, build_objective(_alone(config), encoder, tokenizer, labels))
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    matrices = _elements_of_muon(config, model)
    parts, diffcse, guide = config.objective.parts, config.objective.diffcse, 0
    if (
        "diffcse" in parts and diffcse.replaced_token_weight > 0
    ):  # a second encoder is trained, without its head
        counts += [(p.numel(), True) for p in encoder.lm.base_model.parameters()]
        matrices += _elements_of_muon(config, encoder.lm.base_model)
    if (source := config.objective.guide) is not None:
        with torch.device("meta"):
            guiding = build_encoder(architecture_of(pretrained(AutoConfig, source)), tokenizer)
        guide = sum(parameter.numel() for parameter in guiding.parameters())
    trained = sum(count for count, has_gradient in counts if has_gradient)
    zero = config.deepspeed.get("zero_optimization", {})
    persistent = int(zero.get("stage3_param_persistence_threshold", PERSISTENT))
    flops = model_flops(encoder.lm)
    with mock.patch.dict(os.environ, {VARIABLE: "plain"} if on_gpu else {}):  # the kernels of a GPU
        copies, token_bytes = _activations(sizes, tokenizer, config, length, precision, on_gpu)
    if on_gpu and not config.train.activation_checkpointing:
        token_bytes *= KEPT_BY_PROGRAMS.get(sizes["type"], KEPT)
    widest = GRADIENTS * sizes["intermediate_size"] * 4
    return ModelSize(
        trained=trained,
        frozen=sum(count for count, has_gradient in counts if not has_gradient),
        moments=MOMENTS * trained - matrices,
        small=sum(count for count, has_gradient in counts if has_gradient and count < persistent),
        largest=max(count for count, _ in counts),
        width=encoder.hidden_size,
        vocabulary=encoder.vocab_size,
        copies=copies,
        token_bytes=token_bytes + widest,
        masked_bytes=HEAD_BYTES * encoder.hidden_size,
        token_flops=flops.forward([length]) / length,
        masked_flops=flops.per_masked_token,
        guide=guide,
    )


def _elements_of_muon(config: Config, module: nn.Module) -> int:
    """Return how many parameters Muon updates, with one moment each; 0 by other optimizers."""
    if config.train.optimizer != "muon":
        return 0
    chosen = layer_matrices(module)
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) in chosen)


def _encoder(config: Config, sizes: dict[str, Any], tokenizer: Any) -> SentenceEncoder:
    encoder = build_encoder(sizes, tokenizer, config.model.pooling)
    if config.train.activation_checkpointing:
        encoder.recompute_layers()
    return encoder


def _alone(config: Config) -> Config:
    """Return the configuration without the weights to read of DiffCSE's generator and of a guide."""
    config = config.model_copy(deep=True)
    config.objective.diffcse.replaced_token_weight = 0.0
    if config.objective.guide is not None:
        config.objective.false_negatives.guide, config.objective.retain.model = "self", None
    return config


def _activations(
    sizes: dict[str, Any], tokenizer: Any, config: Config, length: int, precision: str, on_gpu: bool
) -> tuple[float, float]:
    """Return the bytes that a pass keeps whatever its length, and those for each token."""
    layers = sizes["layers"]
    few = [1, 2] if on_gpu and layers > 2 else [layers]
    measurements = []
    for count in few:
        small = PlannedTokenizer(16)  # embeddings are looked up: their size is in no activation
        encoder = _encoder(config, {**sizes, "layers": count}, small)
        model = _model(config, encoder, precision).train()
        short, long = (saved_bytes(model, _row(length, tokens)) for tokens in (ROW, 3 * ROW))
        slope = (long[0] - short[0]) / (long[1] - short[1])
        measurements.append((short[0] - slope * short[1], slope))
    if len(measurements) == 1:
        return max(0.0, measurements[0][0]), measurements[0][1]
    more = layers - 1
    fixed, slope = ((1 - more) * one + more * two for one, two in zip(*measurements))
    return max(0.0, fixed), slope


def _model(config: Config, encoder: SentenceEncoder, precision: str) -> SentenceModel:
    objective = WholeObjective(_alone(config), {})  # no heads: they see vectors, not tokens
    return SentenceModel(encoder, objective, "bf16" if precision == "fp16" else precision)


def _row(length: int, tokens: int) -> MicroBatch:
    count = max(1, tokens // length)
    lengths = torch.full((count,), length)
    ids = torch.full((count * length,), 5)
    return MicroBatch(ids, lengths, torch.arange(count), seed=1)


def saved_bytes(model: nn.Module, row: MicroBatch) -> tuple[int, int]:
    """Return the bytes that autograd keeps of a pass over a row, without parameters; and the row's tokens."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        vectors = model.embed(row)  # held until all is counted: freed memory would be counted twice
    del vectors
    return sum(kept.values()), rounded_rows(row.ids.numel())
