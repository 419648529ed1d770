"""What a run needs of a GPU, for `clearly plan`: bytes of a rank, part by part, and FLOPs of a step.

Parameters are counted on the run's model, without storage; formulas give the bytes of their states and of
activations.
"""

import math
import sys
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pretrain.config.run import Config

if TYPE_CHECKING:
    from torch import nn

FLOAT = 4
BACKWARD = 2.0
"""FLOPs of a backward pass for each of its forward's (`pretrain.telemetry.throughput.BACKWARD_COST`)."""
USABLE = 0.9
"""Share of a device's memory that is planned with: the rest is the context, kernels and holes."""
LOGITS_AT_ONCE, CONTRASTS_AT_ONCE = 2**29, 2**28
"""Most masked-language logits, and contrastive logits, alive at once (`losses.mlm`, `losses.contrastive`; not
imported, because they import torch)."""
LOGIT, CONTRAST = 4, 12
"""Bytes for each of them: two and two of its gradient; read, exponentiated, and its gradient."""
VECTOR_COPIES = 6
"""Times that a step holds the gathered vectors: as sent, gathered, by view, normed, and two gradients."""
STEP = 1024
"""The largest micro-batch is given in multiples of this number of tokens."""
MOMENTS = 2
"""Elements that AdamW and LAMB keep for each parameter; Muon keeps one, its momentum."""
PERSISTENT = 100_000
"""Elements below which ZeRO 3 keeps a tensor whole (stage3_param_persistence_threshold decides otherwise)."""
HEAD_BYTES = 16
"""Bytes for each masked token and channel of the masked-language head: dense, GELU and norm."""
WIRE = {"fp32": 4, "bf16": 2}
"""`train.communication_dtype` -> bytes of an element."""
SENTENCE = 24
"""Mean tokens of a sentence if nothing says: of English Wikipedia, about."""
GRADIENTS = 2
"""Gradients of the widest activation that a backward pass holds at once, float32."""


@dataclass(frozen=True)
class ModelSize:
    """A model, as training holds it.

    trained, frozen: parameters that have gradients, and those that have none.
    moments: elements of the optimizer's state: one for each parameter that Muon updates, two for each other.
    small: trained parameters in tensors that ZeRO 3 keeps whole on every rank.
    largest: elements of the largest tensor.
    width: of sentence vectors.
    vocabulary: rows of the masked-language head.
    copies: bytes of working copies of weights that a pass of any length keeps.
    token_bytes: activations that a pass with gradients keeps for each token of the encoder.
    masked_bytes: further ones for each masked token, without the tile of logits.
    token_flops: of a forward pass, for each token, attention at the batch's mean length included.
    masked_flops: further ones for each masked token.
    guide: parameters of the frozen encoder that finds false negatives; whole on every rank, never saved.
    leaves: bytes of the gradients of working copies, and of those in float32, of one pass.
    recomputed: FLOPs for each token that a backward pass computes again.
    layers: of the encoder.
    """

    trained: int
    frozen: int
    moments: int
    small: int
    largest: int
    width: int
    vocabulary: int
    copies: float
    token_bytes: float
    masked_bytes: float
    token_flops: float
    masked_flops: float
    guide: int = 0
    leaves: float = 0.0
    recomputed: float = 0.0
    layers: int = 0


@dataclass(frozen=True)
class BatchSize:
    """The global batch of a step.

    sequences: of the batch. longest: tokens of the longest sequence that may come.
    masked_tokens: tokens of all maskings together. predicted: of them, those to predict.
    views: sentence vectors of a sequence. view_tokens: tokens of all views together.
    sequence_tokens: tokens of the passes of losses of one sequence at a time.
    momentum_tokens: tokens that an encoder without gradients reads.
    """

    sequences: int
    longest: int
    masked_tokens: float
    predicted: float
    views: int
    view_tokens: float
    sequence_tokens: float = 0.0
    momentum_tokens: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens that go forward and backward, each counted once, as a run's metrics count them."""
        return self.masked_tokens + self.view_tokens + self.sequence_tokens

    @property
    def largest_pass(self) -> float:
        """Tokens of the pass that has the most: the views together, or a loss's own."""
        return max(self.view_tokens, self.masked_tokens, self.sequence_tokens)


@dataclass(frozen=True)
class Layout:
    """How a run is spread: ranks, ZeRO stage, tokens of a micro-batch, and how gradients travel.

    bucket: elements of gradients reduced at once. wire: bytes of an element of a gradient between ranks.
    apex: whether apex's optimizer updates, at stage 1 in DeepSpeed's own step.
    graphs: whether rows may be CUDA graphs (`pretrain.step.graphs.Graphs`).
    """

    ranks: int
    zero: int
    micro_batch_tokens: int
    bucket: int = 500_000_000
    wire: int = 4
    apex: bool = False
    graphs: bool = True


PARTS = {
    "weights": "weights",
    "gradients": "gradients, at stage 3 with the reduced share",
    "optimizer": "optimizer's moments",
    "master": "second copy of this rank's weights (DeepSpeed, stages 1 and 2)",
    "gathered": "weights gathered in a step (stage 3)",
    "copies": "working copies of weights in the encoder's precision",
    "activations": "activations of a micro-batch",
    "loss": "tile of logits, vectors of the global batch",
    "leaves": "gradients of working copies, when activations are gone (stages 0 and 1)",
    "reduction": "buckets of gradients, when activations are gone",
    "reserved": "buckets of gradients at all times (stage 3)",
}
"""Part of a rank's memory -> what it is, as a plan prints it."""
_IN_TURN = ({"activations", "loss"}, {"leaves"}, {"reduction"})


def memory(model: ModelSize, batch: BatchSize, layout: Layout) -> dict[str, float]:
    """Return the bytes of each of a rank's `PARTS`; padding is not counted."""
    zero, ranks = layout.zero, layout.ranks
    share, bucket = FLOAT * model.trained / ranks, float(FLOAT * layout.bucket)
    weights: float = FLOAT * (model.trained + model.frozen)
    activations, loss = micro_batch_bytes(model, batch, layout)
    return {
        "weights": FLOAT * model.guide + (weights if zero < 3 else weights / ranks + FLOAT * model.small),
        # at stage 3 a share in the accumulator, and one that the optimizer reads
        "gradients": FLOAT * model.trained + share * (0, 0, 0, 2)[zero],
        "optimizer": FLOAT * model.moments / (ranks if zero else 1),
        "master": share if zero in (1, 2) else 0.0,
        "gathered": float(FLOAT * model.largest) if zero == 3 else 0.0,  # while its module runs
        "copies": model.copies,
        "activations": activations,
        "loss": loss,
        "leaves": model.leaves if zero <= 1 else 0.0,
        "reduction": _reduction(model, layout, bucket, share),
        "reserved": bucket if zero == 3 else 0.0,
    }


def peak(parts: dict[str, float]) -> float:
    """Return the most bytes at once.

    Gradients are added up and reduced when activations are gone, or go layer by layer: the largest counts.
    """
    in_turn = [sum(parts[name] for name in names) for names in _IN_TURN]
    return sum(parts.values()) - sum(in_turn) + max(in_turn)


def checkpoint_bytes(model: ModelSize) -> float:
    """Return the bytes of a checkpoint: weights and moments, float32."""
    return FLOAT * (model.trained + model.frozen + model.moments)


def _reduction(model: ModelSize, layout: Layout, bucket: float, share: float) -> float:
    """Return the bytes that the reduction of gradients takes.

    At stages 0 and 1 a few buckets are under way, each a copy. In another type than float32 that is a second
    one, also of a tensor that is larger than a bucket. DeepSpeed's own step makes a bucket at stage 1, too.
    """
    from pretrain.step.reduction import UNDER_WAY  # imports torch

    flattened = min(float(FLOAT * model.trained), bucket)  # a bucket's tensors as one, to be sent
    if layout.zero == 2:
        return flattened + bucket + share
    own = bucket + share if layout.zero == 1 and layout.apex else 0.0
    if layout.zero == 3 or layout.ranks == 1:
        return own + (flattened if layout.ranks > 1 else 0.0)
    if layout.wire == FLOAT:
        return own + min(float(FLOAT * model.trained), UNDER_WAY * bucket)
    largest = max(flattened / FLOAT, model.largest)
    return own + FLOAT * largest + layout.wire * min(model.trained, (UNDER_WAY - 1) * layout.bucket + largest)


def micro_batch_bytes(model: ModelSize, batch: BatchSize, layout: Layout) -> tuple[float, float]:
    """Return the bytes of a micro-batch's activations, and those of its loss, of the pass that needs most.

    A pass over views has the global batch's vectors and a tile of similarities, over maskings one of logits.
    """
    budget, ranks = layout.micro_batch_tokens, layout.ranks
    vectors = batch.views * batch.sequences
    of_views = model.token_bytes * min(budget, max(batch.view_tokens, batch.sequence_tokens) / ranks)
    similarities = CONTRAST * min(float(vectors) ** 2, CONTRASTS_AT_ONCE)
    passes = [(of_views, VECTOR_COPIES * FLOAT * vectors * model.width + similarities)]
    if batch.masked_tokens:
        tokens = min(budget, batch.masked_tokens / ranks)
        predicted = tokens * batch.predicted / batch.masked_tokens
        tile = LOGIT * min(predicted * model.vocabulary, max(LOGITS_AT_ONCE, model.vocabulary))
        passes.append((model.token_bytes * tokens + model.masked_bytes * predicted, tile))
    return max(passes, key=sum)


def largest_micro_batch(model: ModelSize, batch: BatchSize, layout: Layout, available: float) -> int | None:
    """Return the most tokens of a micro-batch that fit into `available` bytes, a multiple of `STEP`, or None.

    A micro-batch of all tokens of a rank is the largest that there is.
    """
    least = -(-batch.longest // STEP)
    sizes = range(least, least + int(batch.largest_pass / (layout.ranks * STEP)) + 2)

    def need(steps: int) -> float:
        return peak(memory(model, batch, replace(layout, micro_batch_tokens=steps * STEP)))

    fitting = bisect_right(sizes, available, key=need)
    return sizes[fitting - 1] * STEP if fitting else None


def step_flops(model: ModelSize, batch: BatchSize, layout: Layout) -> float:
    """Return the FLOPs of a step with all that is computed again, of all ranks together.

    A loss of one sequence at a time reads each row twice: a generator or a clean pass, and the one trained.
    """
    encoded = batch.tokens + batch.sequence_tokens
    forward = model.token_flops * encoded + model.masked_flops * batch.predicted
    again = batch.momentum_tokens
    if batch.view_tokens > layout.ranks * layout.micro_batch_tokens:  # else their graph is kept
        again += batch.view_tokens
    return (1 + BACKWARD) * forward + model.token_flops * again + model.recomputed * encoded


@dataclass(frozen=True)
class Reached:
    """What steps reached on a device where it was measured.

    short, long: shares of the peak of rows of many tokens, of sequences of at most `SHORT` tokens, and of
    longer ones. half: tokens of a row that reaches half of that. host: seconds below which no step came.
    fp32: share of float32's peak in float32. stages: how many times a step of ZeRO 0 one of each stage took.
    launches: seconds that the host takes for a layer of a row without graphs; for half of them without
    gradients.
    """

    short: float
    long: float
    half: float
    host: float
    fp32: float
    launches: float = 0.0
    stages: tuple[float, ...] = (1.0, 1.015, 1.15, 1.56)


SHORT = 128
"""Tokens of the longest sequence whose attention is one tile (`pretrain.model.attention.BUCKETS`)."""


def share_reached(
    reached: Reached, model: ModelSize, batch: BatchSize, layout: Layout, length: int, peak: float
) -> float:
    """Return the share of the `peak` of all ranks, FLOP/s, that a step reaches by `step_flops`."""
    best = peak * (reached.short if length <= SHORT else reached.long)
    work, seconds, passes = step_flops(model, batch, layout), 0.0, 0.0
    of_head = (1 + BACKWARD) * model.masked_flops * batch.predicted
    others = batch.tokens - batch.masked_tokens  # of which a row is kept, or passes twice
    for tokens, head, first in ((batch.masked_tokens, of_head, 0.0), (others, 0.0, 0.5)):
        of_rank = tokens / layout.ranks
        rows = math.ceil(of_rank / layout.micro_batch_tokens)
        if rows:
            flops = head + (work - of_head) * tokens / batch.tokens
            seconds += flops * (1 + reached.half * rows / of_rank) / best
            passes += rows * (1 + first * (rows > 1))
    host = reached.host + (0.0 if layout.graphs else reached.launches * model.layers * passes)
    return work / (peak * max(seconds, host) * reached.stages[layout.zero])


def assumed_batch(config: Config, length: int | None, longest: int | None = None) -> tuple[BatchSize, int]:
    """Return the batch whose texts and views all have `length` tokens, and that length; None: assumed.

    longest: tokens of the longest sequence; None: as the recipe prepares data.
    """
    from pretrain.objectives import view_specs  # imports torch

    objective, parts, prepare = config.objective, config.objective.parts, config.data.prepare
    longest = longest or prepare.max_length
    if length is None:
        length = min(SENTENCE, longest) if prepare.unit == "sentence" else longest
    tokens, mlm = float(config.train.global_batch * length), objective.mlm
    masked = tokens * objective.masked_copies
    # views that the losses of one sequence at a time read
    readers = 2 * ("diffcse" in parts and objective.diffcse.replaced_token_weight > 0)
    readers += "vadvcse" in parts and objective.vadvcse.resolved.adversarial_weight > 0
    views = len(view_specs(config))
    batch = BatchSize(
        sequences=config.train.global_batch,
        longest=min(config.model.max_positions, longest),
        masked_tokens=masked,
        predicted=masked * max([mlm.rate, *mlm.later_rates.values()]),
        views=views,
        view_tokens=tokens * views,
        sequence_tokens=tokens * readers,
        momentum_tokens=tokens * ("esimcse" in parts and objective.esimcse.queue > 0),
    )
    return batch, length


def layout_of(config: Config, ranks: int, zero: int) -> Layout:
    """Return how a run is spread over GPUs."""
    from pretrain.step.reduction import BUCKET  # imports torch

    zeros = config.deepspeed.get("zero_optimization", {})
    return Layout(
        ranks,
        zero,
        config.train.micro_batch,
        int(zeros.get("reduce_bucket_size", BUCKET if zero <= 1 else Layout.bucket)),
        wire=WIRE[config.train.communication_dtype],
        apex=config.train.optimizer_code == "apex",
        graphs=config.train.graphs == "auto" and zero < 3 and not config.train.activation_checkpointing,
    )


def fitting_micro_batch(config: Config, tokenizer: Any, longest: int, ranks: int, free: float) -> int:
    """Return what `train.micro_batch_tokens: auto` is where a GPU has `free` bytes: a power of 2; 0: no GPU.

    Short sequences go in rows that can be CUDA graphs. Activations count twice: a graph holds them again.
    Where nothing fits, or a model cannot be measured, a line says so.
    """
    from pretrain.step.graphs import LARGEST_ROW  # imports torch

    batch, length = assumed_batch(config, longest, longest)
    # a loss of one sequence at a time has half of a pass
    least = architecture(config)["max_positions"] * (2 if batch.sequence_tokens else 1)
    if not free:
        return max(config.train.micro_batch, least)
    try:
        model = measure_model(config, tokenizer, length, config.train.precision)
    except (RuntimeError, TypeError, ValueError) as error:  # a plug-in reads tensors, which have no data
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        print(f"WARNING: a pass is not fitted to memory ({why})", file=sys.stderr, flush=True)
        return max(config.train.micro_batch, least)
    model = replace(model, token_bytes=2 * model.token_bytes)
    layout = layout_of(config, ranks, config.train.zero)
    fitting = largest_micro_batch(model, batch, layout, USABLE * free)
    if fitting is None:
        why = f"by estimate {free / 1e9:.3g} GB hold no micro-batch of this run with its CUDA graph"
        print(f"WARNING: {why}; clearly plan shows its parts", file=sys.stderr, flush=True)
        return least
    most = LARGEST_ROW if longest <= SHORT else 2 * LARGEST_ROW
    tokens = most if fitting * ranks >= batch.largest_pass else 1 << fitting.bit_length() - 1
    return max(min(tokens, most), least)


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


def architecture(config: Config, source: str | None = None) -> dict[str, Any]:
    """Return the sizes of `source`; None: of the run's encoder, from the checkpoint that it starts from."""
    if (source := source or config.model.init) is None:
        return config.model.architecture()
    from transformers import AutoConfig

    from augment.core.pretrained import pretrained
    from pretrain.model.architectures import architecture_of

    return architecture_of(pretrained(AutoConfig, source))


def measure_model(config: Config, tokenizer: Any, length: int, precision: str) -> ModelSize:
    """Count a run's parameters, its activations for each token, and its FLOPs at a mean length."""
    import torch  # with the model's modules: seconds, which --help need not wait for

    from pretrain.model.encoder import build_encoder
    from pretrain.objectives import build_objective
    from pretrain.step.model import SentenceModel
    from pretrain.telemetry.throughput import model_flops

    sizes = architecture(config)
    labels = max(2, (config.augment.augmented or "").count("|") + 1)
    alone = _without_frozen_encoders(config)
    with torch.device("meta"):
        encoder = build_encoder(sizes, tokenizer, config.model.pooling)
        model = SentenceModel(encoder, build_objective(alone, encoder, tokenizer, labels))
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    matrices = _elements_of_matrices(model)
    copies, leaves = 2 * matrices, (2 + FLOAT) * matrices
    if precision == "fp32":  # a parameter is its own copy, but for those side by side
        copies, leaves = 0, FLOAT * matrices
    diffcse, guide = config.objective.diffcse, 0
    if "diffcse" in config.objective.parts and diffcse.replaced_token_weight > 0:
        # a second encoder is trained, without its head
        counts += [(p.numel(), True) for p in encoder.lm.base_model.parameters()]
        matrices += _elements_of_matrices(encoder.lm.base_model)
    if (source := config.objective.guide) is not None:
        with torch.device("meta"):
            guiding = build_encoder(architecture(config, source), tokenizer)
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
        leaves=leaves,
        recomputed=config.train.activation_checkpointing * flops.forward([length]) / length,
        layers=sizes["layers"],
    )


def _elements_of_matrices(module: "nn.Module") -> int:
    """Count the parameters of the matrices of layers: those that Muon updates, with one moment each."""
    from pretrain.model.layer import layer_matrices

    chosen = layer_matrices(module)
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) in chosen)


def _without_frozen_encoders(config: Config) -> Config:
    """Return the configuration without the weights to read of DiffCSE's generator and of a guide."""
    config = config.model_copy(deep=True)
    config.objective.diffcse.replaced_token_weight = 0.0
    if config.objective.false_negatives.model is not None:
        config.objective.false_negatives.guide = "self"
    config.objective.retain.model = config.objective.distill.model = None
    return config


def token_bytes(sizes: dict[str, Any], precision: str, recomputes: bool) -> int:
    """Return the bytes that a GPU's programs keep of a token, as they are counted on tensors without data.

    Of a layer: its input and the norms' in float32, products in the encoder's precision.
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
