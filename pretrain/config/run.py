"""The typed configuration tree that describes a run: its sections, their keys, and what contradicts what.

The text under each field is that of `--help`. `pretrain.config.recipe` reads a tree from YAML and flags.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, field_validator, model_validator

from augment.core.errors import AugmentationError
from augment.spec.grammar import parse as parse_augmentation
from augment.spec.grammar import with_excerpt
from pretrain.common.errors import UserError
from pretrain.common.typed_values import NONE_IS_A_VALUE, excerpt, named_places
from pretrain.config.data import LoadingConfig
from pretrain.config.objectives import ObjectiveConfig
from pretrain.config.terms import ModelName, Section, refuse

Pooling = Literal["cls", "mean", "first-last", "embedding-last", "last-two", "words"]


class ModelConfig(Section):
    former: ClassVar = {"layer_code": "own", "residual": "fp32"}

    init: ModelName | None = None
    """start from this run or export of ours, Hugging Face folder or hub name instead of random weights. Flag
    --init"""
    type: Literal["bert", "roberta", "modernbert", "xlm-roberta", "camembert", "distilbert", "electra"] = (
        "bert"
    )
    """architecture. With init this and the sizes below are the checkpoint's; other values are refused"""
    layers: int = Field(4, ge=1)
    """transformer layers"""
    hidden_size: int = Field(256, ge=8)
    """width"""
    heads: int = Field(4, ge=1)
    """attention heads"""
    intermediate_size: int | None = None
    """feed-forward width; none: 4 x hidden_size"""
    max_positions: int = Field(512, ge=8)
    """longest sequence, special tokens included"""
    dropout: float = Field(0.1, ge=0, lt=1)
    """dropout on all layers; with init, if it is not given, the checkpoint's own"""
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    """dropout on attention probabilities; with init as dropout"""
    attention: Literal["fast", "exact"] = "fast"
    """dropout on attention in rows with a sequence of over 128 tokens, on a GPU. exact: the same in any split
    of a batch, as elsewhere; fast: flash attention's, for which another split is another sample"""
    initializer_range: float | None = Field(None, gt=0)
    """standard deviation of random weights; none: the library's, 0.02, meant for a width of 768"""
    pooling: Pooling = "cls"
    """sentence vector: [CLS]; mean of the last layer; mean of layer 1 and last; of embedding output and last;
    of the last two; of word embeddings alone, a static table for which no layer runs"""
    token_weights: Literal["equal", "sif"] = "equal"
    """weights of tokens in means, in training and in use. sif: a / (a + share of the data's tokens), with
    a = 0.001 (Arora et al. 2017)"""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        odd = self.init is None and self.hidden_size % self.heads
        refuse(odd, f"model.hidden_size={self.hidden_size} is not a multiple of model.heads={self.heads}")
        return self

    def architecture(self) -> dict[str, Any]:
        """Return the sizes of a model to be built (`pretrain.model.architectures.config_from`)."""
        sizes = self.model_dump(exclude={"init", "pooling", "attention", "token_weights"}, exclude_none=True)
        return sizes | {"intermediate_size": self.intermediate_size or 4 * self.hidden_size}


Spec = Annotated[str, NONE_IS_A_VALUE]
"""What augmentations to apply; `none` is the one that changes nothing."""


SIZES = ("type", "layers", "hidden_size", "heads", "intermediate_size", "max_positions", "initializer_range")
"""Keys of `model` that a checkpoint decides."""
DROPOUTS = ("dropout", "attention_dropout")
"""Keys of `model` that a checkpoint decides if they are not given."""


class AugmentConfig(Section):
    spec: Spec = "del-span,reorder"
    """augmentation of both views, seeds independent: 'a,b' in order, 'a|b' one per sentence, 'a:key=value', a
    function of your own 'my.py:f', 'none'. Flag --aug"""
    excerpt: Spec = "none"
    """what anchor and positive take of a sequence before their augmentation, so that views are as long as the
    texts that the encoder is for: 'span:min_length=8:max_length=64:alpha=2:beta=4'; none: all of it"""
    anchor: Spec | None = None
    """augmentation of the first view, if it differs"""
    positive: Spec | None = None
    """augmentation of the second view, if it differs"""
    negative: Spec = "none"
    """augmentation of the negative view, for objectives that have one; the data's column `negative`, if there
    is one, is its source"""
    augmented: Spec | None = None
    """augmentations that augcse's discriminator must recognise, 'a|b|c'"""
    synonyms: Path | None = None
    """synonym table for subs; none: the counter-fitted table under CLEAR_DATA, else WordNet"""

    @model_validator(mode="after")
    def _specs_parse(self) -> Self:
        try:
            views = [self.of_role(role) for role in ("anchor", "positive")]
            for spec in filter(None, (*views, self.spec, self.negative, self.augmented)):
                parse_augmentation(spec)
        except AugmentationError as error:
            raise ValueError(str(error)) from None
        return self

    def of_role(self, role: str) -> str:
        """Return the specification of the view that plays a role, with the excerpt that it begins with.

        role: anchor, positive (also positive2 ...), negative, augmented, or one of an objective of your
        own, which takes `spec`.
        """
        if role == "augmented" and self.augmented is None:
            raise UserError("augment.augmented is missing: give alternatives, as 'del-word|reorder', or none")
        kind = role.rstrip("0123456789")
        has_own = kind in ("anchor", "positive", "negative", "augmented")
        spec = (getattr(self, kind) if has_own else None) or self.spec
        return spec if kind in ("negative", "augmented") else with_excerpt(self.excerpt, spec)


Steps = Annotated[str, Field(pattern=r"^[1-9]\d*(-[1-9]\d*)?$")]
"""Steps as metrics.jsonl numbers them, from 1: `812`, or `812-900` with both ends."""


class FaultsConfig(Section):
    """A fault is a step with a loss or gradient that is not finite; with `spikes: skip`, also a spike."""

    former: ClassVar = {"within": ...}

    skip: int = Field(3, ge=0)
    """faults of which only the step's update is left out, in any 1,000 steps; one more rolls the run back"""
    rollbacks: int = Field(1, ge=0)
    """how often a run returns to its last good checkpoint and leaves out the steps since then, before it
    stops with a report"""
    spikes: Literal["warn", "skip", "rollback"] = "warn"
    """a gradient norm over `spike_factor` times the running median of 100 steps: warn; skip, a fault; or roll
    back at once"""
    spike_factor: float = Field(10.0, gt=1)
    """multiple of that median above which a gradient norm is a spike"""
    dead_loss: Literal["warn", "stop"] = "warn"
    """a sentence loss that will not learn, or does not for many rows: warn, or stop the run. What says so is
    `view_signal` before the first step, and the contrastive loss that guessing reaches"""
    jump: tuple[Steps, ...] = ()
    """steps that are counted and not trained: 812-900,1207. Their data is not used"""

    @field_validator("jump", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(part for part in re.split(r"[,\s]+", value) if part) if isinstance(value, str) else value

    @field_validator("jump")
    @classmethod
    def _forward(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for steps in value:
            first, _, last = steps.partition("-")
            if last and int(last) < int(first):
                raise ValueError(f"train.faults.jump: {steps} ends before it begins")
        return value

    @property
    def jumps(self) -> list[tuple[int, int]]:
        """The steps left out, as (a, b) in order: where a steps are done, b count as done.

        >>> FaultsConfig(jump="8-9,812-900,901,850").jumps
        [(7, 9), (811, 901)]
        """
        merged: list[tuple[int, int]] = []
        for first, last in sorted((int(a), int(b or a)) for a, _, b in (s.partition("-") for s in self.jump)):
            if merged and first - 1 <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first - 1, last))
        return merged


Precision = Literal["auto", "fp32", "bf16", "fp16"]


class TrainConfig(Section):
    former: ClassVar = {"precision_file": ..., "balance": ..., "muon_scale": "match_rms_adamw"}

    steps: int = Field(1000, ge=1)
    """optimizer steps; a recipe's warm-up that does not fit into them keeps its share of the steps. Flag
    --steps"""
    global_batch: int = Field(192, ge=2)
    """sequences per step over all ranks; also the pool of negatives"""
    batch_warmup_steps: int = Field(0, ge=0)
    """steps over which the batch grows evenly from batch_start to global_batch; not with data.sets"""
    batch_start: int | None = Field(None, ge=2)
    """sequences of the first step of a batch that grows; none: data.lanes"""
    micro_batch_tokens: int | Literal["auto"] = "auto"
    """most tokens in one forward pass: bounds memory, reorders sums. Halve it when out of memory. auto:
    16,384; on GPUs a power of 2 by free memory, up to 32,768, or 65,536 for texts of over 128 tokens"""
    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    """AdamW; LAMB; or Muon for the matrices of encoder layers with AdamW for all else, at AdamW's lr (both
    ZeRO 0 only)"""
    optimizer_code: Literal["torch", "apex"] = "torch"
    """torch: its fused AdamW, and a LAMB in torch, on any device; apex: NVIDIA's, on GPUs. They differ by
    rounding"""
    lr: float = Field(6e-4, gt=0)
    """peak learning rate"""
    head_lr_scale: float = Field(1.0, gt=0)
    """learning rate of the objective's heads, in multiples of lr (VaSCL: 100)"""
    warmup_steps: int = Field(100, ge=0)
    """steps of linear warm-up"""
    schedule: Literal["linear", "constant", "cosine", "wsd"] = "linear"
    """decay after warm-up, to zero at the last step; wsd: only in the last decay_steps"""
    decay_steps: int | None = Field(None, ge=1)
    """steps of wsd's decay, the last of train.steps; none: a tenth of them"""
    decay_shape: Literal["1-sqrt", "linear"] = "1-sqrt"
    """what wsd's decay multiplies the rate by: 1 - sqrt(s) or 1 - s, s the share of the decay that is done"""
    betas: tuple[float, float] = (0.9, 0.98)
    """Adam's beta 1 and 2"""
    eps: float = Field(1e-6, gt=0)
    """Adam's epsilon"""
    weight_decay: float = Field(0.01, ge=0)
    """decoupled weight decay; biases and norms are exempt"""
    clip: float = Field(1.0, ge=0)
    """largest gradient norm: a longer gradient is scaled down to it; 0: no clipping"""
    precision: Precision = "auto"
    """arithmetic of the encoder; parameters, heads and losses stay fp32 (train.tf32). auto: bf16 on a GPU or
    CPU that has instructions for it. fp16: GPU, with loss scaling"""
    tf32: Literal["auto", "on", "off"] = "auto"
    """whether a GPU rounds the factors of fp32 products, as those of heads and losses, to 11 bits (TF32): the
    loss of 65,536 sentences in a quarter of the time. auto: on with bf16 and fp16, unless
    train.deterministic or model.attention exact is set"""
    activation_checkpointing: bool = False
    """keep only the input of each layer of the encoder, and compute the layer again in the backward pass: a
    third more time, less memory. Changes no gradient"""
    graphs: Literal["auto", "off"] = "auto"
    """auto: on a GPU, a row of at most 32,768 tokens is launched as one CUDA graph, recorded when a row of
    its shape comes a second time: else a GPU waits for the host, most of the time with short sentences.
    Changes no gradient. The run says so if a row cannot be recorded. off: never"""
    zero: int = Field(1, ge=0, le=3)
    """DeepSpeed ZeRO stage"""
    communication_dtype: Literal["fp32", "bf16"] = "fp32"
    """type in which gradients travel between ranks and are summed; bf16 halves the bytes and rounds every
    partial sum to 8 bits. Accumulation in a rank and the optimizer stay fp32"""
    seed: int = Field(42, ge=0)
    """seed of weights, data order, masks, augmentations and dropout"""
    deterministic: bool = False
    """on a GPU, use only algorithms that give the same bits each time; an error names an operation that has
    none. A CPU always does"""
    threads: int | None = Field(None, ge=1)
    """CPU threads per rank; none: OMP_NUM_THREADS if it is set, else cores / ranks on this machine. Without
    either, and without a number of ranks from a launcher, a machine without a GPU runs one rank per core.
    torchrun itself sets OMP_NUM_THREADS=1 for several ranks, so a 1 there counts as not set: for one thread
    say --train.threads 1"""
    patience: int | None = Field(None, ge=1)
    """end the run after N evaluations (evaluate.every) in a row that were not better than the best one
    by evaluate.best_by; none: train all steps. The learning rate keeps to train.steps"""
    rendezvous_seconds: int = Field(600, ge=1)
    """most seconds that ranks wait for each other at the start"""
    step_deadline: float | None = Field(None, ge=0)
    """seconds after which a step that does not end ends the run, with the name of the rank that the others
    wait for; none: ten times the longest of the last 64 steps, at least 300; 0: no deadline. The
    start, evaluations and checkpoints have ten times what is given here; else an hour"""
    log_every: int = Field(10, ge=1)
    """steps between two rows of metrics, which are means over these steps"""
    faults: FaultsConfig = Field(default_factory=FaultsConfig)
    """numbers that are not finite, and spikes"""

    @field_validator("micro_batch_tokens", mode="before")
    @classmethod
    def _tokens_or_auto(cls, value: Any) -> Any:
        wrong = value != "auto" and not (str(value).isdecimal() and int(value) >= 16)
        refuse(wrong, f"train.micro_batch_tokens: give auto or an integer from 16 on, not {excerpt(value)}")
        return value

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        batch, steps, warmup = self.batch_start, self.steps, self.warmup_steps
        constant_batch = batch and not self.batch_warmup_steps
        refuse(constant_batch, f"train.batch_start={batch} changes nothing without train.batch_warmup_steps")
        too_long = warmup >= steps > 2 and self.schedule != "constant"
        refuse(too_long, f"train.warmup_steps={warmup} leaves nothing of train.steps={steps}; lower it")
        wsd, decay = self.schedule == "wsd", steps - self.decay_begins
        unused = self.decay_steps and not wsd
        refuse(unused, f"train.decay_steps={self.decay_steps} changes nothing without train.schedule wsd")
        parts = f"train.warmup_steps={warmup} and train.decay_steps {decay}"
        refuse(wsd and warmup + decay > steps > 2, f"{parts} are more than train.steps={steps}")
        jumps_last = self.faults.jumps and self.faults.jumps[-1][1] >= steps
        refuse(jumps_last, f"train.faults.jump leaves out the last step (train.steps={steps}): end before it")
        return self

    @model_validator(mode="after")
    def _optimizer_has_what_it_needs(self) -> Self:
        name, code = self.optimizer, self.optimizer_code
        cut = name in ("lamb", "muon") and self.zero > 0
        refuse(cut, f"train.optimizer={name} needs train.zero=0: ZeRO cuts apart the matrices that it reads")
        refuse(name == "muon" and code != "torch", f"train.optimizer=muon is torch's: {code} has none")
        wrong = not all(0 <= beta < 1 for beta in self.betas)
        refuse(wrong, f"train.betas={self.betas}: each must lie in [0, 1)")
        return self

    @property
    def micro_batch(self) -> int:
        """`micro_batch_tokens` as a number, if no GPU's memory has decided it."""
        return 16384 if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def decay_begins(self) -> int:
        """The step from which the learning rate falls; `steps` if it never does."""
        if self.schedule == "wsd":
            return self.steps - (self.decay_steps or math.ceil(self.steps / 10))
        return self.steps if self.schedule == "constant" else self.warmup_steps


class EvaluateConfig(Section):
    every: int = Field(500, ge=0)
    """steps between evaluations; 0: only at the end"""
    heldout_sequences: int = Field(2000, ge=2)
    """number of held-out sequences for the masked-language loss"""
    mask_rate: float | None = Field(None, gt=0, lt=1)
    """share of tokens predicted in the held-out loss, at every step the same; none: objective.mlm.rate"""
    partners: int = Field(1000, ge=2)
    """number of held-out sequences among which a view's other view is looked for"""
    sets: Annotated[dict[str, str], BeforeValidator(named_places)] = Field(default_factory=dict)
    """test sets of your own that every evaluation scores: files between commas, or name: file; of two texts
    and a score, a text and a label, or a query and a document (docs/evaluation.md)"""
    best_by: str | None = None
    """score by which best/ is chosen, if it is evaluated: stsb-dev, heldout_mlm_loss, partner_loss, or a
    name in evaluate.sets; none: STS-B dev if its data is there, else a held-out loss; of a run from random
    weights the masked-language loss first"""
    sts: Path | None = None
    """folder of the benchmarks; none: CLEAR_DATA; without SentEval's STS data in it, no evaluation by STS.
    Flag --eval-data"""


class CheckpointConfig(Section):
    every: int = Field(500, ge=0)
    """steps between checkpoints; 0: only at the end and when the run is stopped"""
    keep: int = Field(2, ge=1)
    """number of newest checkpoints kept"""
    keep_every: int = Field(0, ge=0)
    """steps between checkpoints that are kept forever, beside the newest; a multiple of checkpoint.every; 0:
    none"""
    keep_best: bool = False
    """keep the checkpoint of the best step, too; its export, best/, always stays"""
    background: bool = True
    """copy parameters and moments to host memory (12 bytes a parameter, over all ranks) and write checkpoints
    from there while training goes on; without room for the copy, and with false, training waits"""
    resume: str = "never"
    """auto: resume from the newest good checkpoint of the run folder, start from the beginning if it has none
    at all, and stop if it has some and none is good; never: refuse a run folder that has any; or a checkpoint
    folder. Flag --resume"""
    accept: str | None = None
    """inputs that may differ from those that the checkpoint was trained with, as the error of a resume names
    them: 'rules,synonyms'; none: any difference is refused"""

    @model_validator(mode="after")
    def _kept_steps_are_saved(self) -> Self:
        unsaved = self.keep_every and (not self.every or self.keep_every % self.every)
        refuse(unsaved, "checkpoint.keep_every must be a multiple of checkpoint.every")
        return self


@dataclass(frozen=True)
class BatchSizes:
    """The size of the global batch, a function of the step alone.

    It grows from `start` to `full` over `growth_steps` steps, evenly, and is a multiple of `lanes` at each of
    them: with k = (full - start) / lanes, step s < growth_steps has start + floor(k s / growth_steps) lanes.

    >>> sizes = BatchSizes(full=16, lanes=4, start=4, growth_steps=6)
    >>> sizes.at(np.arange(8)).tolist(), sizes.total_before(8)
    ([4, 4, 8, 8, 12, 12, 16, 16], 80)
    """

    full: int
    lanes: int
    start: int
    growth_steps: int = 0

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Return the sequences of each of the steps (int64[n], from 0): int64[n]."""
        if not self.growth_steps:
            return np.full_like(steps, self.full)
        more = (self.full - self.start) // self.lanes
        return self.start + more * np.minimum(steps, self.growth_steps) // self.growth_steps * self.lanes

    def at_step(self, step: int) -> int:
        """Return the sequences of a step."""
        return int(self.at(np.array([step]))[0])

    def total_before(self, step: int) -> int:
        """Return the sequences of all steps before a step."""
        early = min(step, self.growth_steps)
        return int(self._sums[early]) + (step - early) * self.full

    def full_steps(self, steps: int) -> float:
        """Return how many steps of the full batch have as many sequences as the first `steps`."""
        return self.total_before(steps) / self.full

    def changes(self, first: int, stop: int) -> list[int]:
        """Return the steps in (first, stop) whose batch is larger than that of the step before."""
        steps = np.arange(min(first, self.growth_steps), min(stop, self.growth_steps + 1))
        larger = steps[1:][np.diff(self.at(steps)) > 0]
        return larger[(larger > first) & (larger < stop)].tolist()

    @cached_property
    def _sums(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.at(np.arange(self.growth_steps)))])


Tracker = Literal["tensorboard", "wandb", "mlflow"]


class Config(Section):
    name: str = "clear"
    """name of the run; its folder is runs/NAME unless `folder` says otherwise"""
    folder: Path | None = None
    """run folder. Flag --run"""
    track: tuple[Tracker, ...] | None = ("tensorboard",)
    """where to show the curves, between commas; none: metrics.jsonl alone. All but tensorboard need pip
    install 'sentence-clear[track]'"""
    data: LoadingConfig = Field(default_factory=LoadingConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    objective: ObjectiveConfig = Field(default_factory=ObjectiveConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    deepspeed: dict[str, Annotated[Any, NONE_IS_A_VALUE]] = Field(default_factory=dict)
    """any DeepSpeed option, merged over ours; one that contradicts the tree above, or that DeepSpeed does not
    have, is refused and named; so is offload, which is not supported"""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        train, lanes, start = self.train, self.data.lanes, self.batch_sizes.start
        batch = train.global_batch
        refuse(batch % lanes, f"train.global_batch={batch} is not a multiple of data.lanes={lanes}")
        unevaluated = train.patience and not self.evaluate.every
        refuse(unevaluated, f"train.patience={train.patience} counts evaluations: set evaluate.every")
        grows = train.batch_warmup_steps and self.data.sets
        refuse(grows, "train.batch_warmup_steps: with data.sets all batches have one size")
        wanted = f"a multiple of data.lanes={lanes}, and at most {batch}"
        refuse(start % lanes or start > batch, f"train.batch_start={start} must be {wanted}")
        if "retain" in self.objective.parts:
            retain = self.objective.retain
            retain.model = retain.model or self.model.init
        named = " is not ".join(f"{key}={model}" for key, model in self.objective.frozen.items())
        two = len(set(self.objective.frozen.values())) > 1
        refuse(two, f"{named}, and one frozen encoder is all there can be")
        nothing = self.objective.keep_vectors != "none" and self.objective.guide is None
        refuse(nothing, "objective.keep_vectors: no frozen encoder is named; name one, or leave it out")
        idle = self.model.pooling == "cls" or not any(self.data.prompts.values())
        idle = idle and not self.data.prompts_pooled
        refuse(idle, "data.prompts_pooled=false changes nothing without data.prompts, or under pooling=cls")
        weighs = self.model.token_weights != "equal" or self.model.pooling == "words"
        unread = weighs and not self.data.prompts_pooled
        what = "model.token_weights and model.pooling=words go"
        refuse(unread, f"{what} with data.prompts_pooled=true: exports have no other form")
        headed = self.model.pooling == "words" and self.objective.simcse.keep_head
        refuse(headed, "objective.simcse.keep_head: model.pooling=words is used as a table, without a head")
        return self

    @property
    def batch_sizes(self) -> BatchSizes:
        """The sequences of each step."""
        train, lanes = self.train, self.data.lanes
        least = train.batch_start or lanes * math.ceil(2 / lanes)
        start = least if train.batch_warmup_steps else train.global_batch
        return BatchSizes(train.global_batch, lanes, start, train.batch_warmup_steps)

    @property
    def heldout_rate(self) -> float:
        """The share of tokens predicted in the held-out masked-language loss."""
        return self.evaluate.mask_rate or self.objective.mlm.rate

    @property
    def run_folder(self) -> Path:
        return self.folder or Path("runs") / self.name

    @property
    def data_folder(self) -> Path:
        if self.data.sets:
            return self.data.sets[0].folder
        return self.data.folder or Path("data") / self.name
