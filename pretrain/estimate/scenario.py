"""A run as it is planned: its sizes, the device, and what follows for a number of ranks and a ZeRO stage."""

from dataclasses import dataclass
from typing import Any

from pretrain.config.run import Config
from pretrain.data.manifest import MANIFEST
from pretrain.data.tokenizer import load_tokenizer
from pretrain.estimate.batch import assumed_batch, assumed_length, sampled_batch
from pretrain.estimate.communication import collectives
from pretrain.estimate.devices import CPU, Device
from pretrain.estimate.duration import Duration, duration
from pretrain.estimate.measure import PlannedTokenizer, measure_model
from pretrain.estimate.memory import USABLE, Memory, largest_micro_batch, memory
from pretrain.estimate.run_size import BatchSize, Layout, ModelSize
from pretrain.start.data import open_train
from pretrain.step.reduction import BUCKET

WIRE = {"fp32": 4, "bf16": 2}
"""`train.communication_dtype` -> bytes of an element."""


@dataclass(frozen=True)
class Estimate:
    """What a run needs on so many ranks at a ZeRO stage.

    largest: tokens of the largest micro-batch that fits; None: none does. all_tokens: of a rank's largest
    pass. fits: whether the run's own micro-batch does. lanes_suffice: whether each rank has a lane.
    sent: bytes that a rank sends in a step. hours: of the whole run. cost: of it, in the price's currency.
    """

    layout: Layout
    memory: Memory
    duration: Duration
    largest: int | None
    all_tokens: float
    fits: bool
    sent: float
    hours: float
    cost: float
    lanes_suffice: bool


@dataclass(frozen=True)
class Scenario:
    """A configuration with all that does not depend on the number of ranks.

    length: mean tokens of a sequence. sampled: whether lengths are those of the data. price: of a device for
    an hour. disk: bytes/s.
    """

    config: Config
    model: ModelSize
    batch: BatchSize
    device: Device
    device_name: str
    precision: str
    length: int
    sampled: bool
    price: float
    disk: float

    def layout(self, ranks: int, zero: int, tokens: int | None = None) -> Layout:
        """Return the layout of the run on so many ranks; tokens: of a micro-batch, None: the recipe's."""
        zeros = self.config.deepspeed.get("zero_optimization", {})
        return Layout(
            ranks,
            zero,
            tokens or self.config.train.micro_batch_tokens,
            int(zeros.get("reduce_bucket_size", BUCKET if zero <= 1 else Layout.bucket)),
            reserved=self.device_name != CPU,
            wire=WIRE[self.config.train.communication_dtype],
            background=self.config.checkpoint.background and self.config.checkpoint.every > 0,
        )

    def estimate(self, ranks: int, zero: int, utilisation: float) -> Estimate:
        """Return what the run needs on so many ranks at a ZeRO stage."""
        layout = self.layout(ranks, zero)
        need = memory(self.model, self.batch, layout)
        available = USABLE * self.device.memory
        train = self.config.train
        time = duration(
            self.model,
            self.batch,
            layout,
            self.device,
            utilisation,
            self.config.checkpoint.every,
            self.disk,
        )
        hours = time.step * self.config.batch_sizes.full_steps(train.steps) / 3600
        return Estimate(
            layout=layout,
            memory=need,
            duration=time,
            largest=largest_micro_batch(self.model, self.batch, layout, available),
            all_tokens=self.batch.largest_pass / ranks,
            fits=need.peak <= available,
            sent=sum(part.sent(ranks) for part in collectives(self.model, self.batch, layout)),
            hours=hours,
            cost=hours * ranks * self.price,
            lanes_suffice=self.config.data.lanes >= ranks,
        )


def precision_of(config: Config, on_gpu: bool) -> str:
    """Return the precision of the encoder: `auto` is bf16 on a GPU, and measured on this machine's cores."""
    if config.train.precision != "auto":
        return config.train.precision
    if on_gpu:
        return "bf16"
    from pretrain.telemetry.throughput import choose_precision

    return choose_precision("cpu")[0]


def open_scenario(
    config: Config,
    length: int | None,
    device_name: str,
    device: Device,
    precision: str,
    price: float,
    disk: float,
) -> Scenario:
    """Measure a run's sizes, from its prepared data where there is some.

    length: mean tokens of a sequence; None: of the data, or assumed.
    """
    tokenizer: Any = PlannedTokenizer(config.data.prepare.vocabulary)
    reader = None
    if (config.data_folder / MANIFEST).is_file():
        reader = open_train(config)
        tokenizer = load_tokenizer(reader.tokenizer_path)
    if length is None and reader is not None:
        batch, mean = sampled_batch(config, reader, tokenizer), reader.num_tokens // reader.num_sequences
    else:
        mean = length or assumed_length(config)
        batch = assumed_batch(config, mean)
    on_gpu = device_name != CPU
    model = measure_model(config, tokenizer, max(1, mean), precision, on_gpu)
    sampled = length is None and reader is not None
    return Scenario(config, model, batch, device, device_name, precision, max(1, mean), sampled, price, disk)
