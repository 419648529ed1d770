"""Accept a GPU: does the step compute there what it should, does it wait, and how fast is it?

    python tests/benchmarks/gpu_accept.py [--device cuda|cpu] [--out FILE.json] [--parts tests,waits]

attention  microseconds of a layer's attention, by the program for short sequences, that for any and flash
bandwidth  bytes a second of what memory bounds, by the number of programs
exactness  float32 and bfloat16 gradients against a padded float64 reference, without dropout
replay     a second pass draws the same dropout, and a pass without graphs, too
resume     bit for bit
waits      steps under torch's own alarm for a host that waits
tests      those that are marked gpu: they run beside the four above, for at most 100 seconds
settle     until the peers have compiled, and only wait
batch64, batch512, batch8192
           steps of so many sentences: with graphs and without, beside a plan's speed and memory
batch65536 a step of so many sentences, and its loss alone, in TF32 and float32
masked     steps of sequences of 512 tokens, with graphs and without, with model.attention fast and exact,
           memory at the peak against a plan's
peer512, peer8192, peer_masked, peer64
           a peer at the same: transformers, padded and compiled; of 8,192 sentence-transformers' cached loss.
           They start, and compile, beside the parts that time nothing

A speed is real tokens per second, its share that of a measured product. Checks have graphs, as users do, and
say how many rows were encoded by graphs. Prints a line as each part ends, and writes JSON again. All must end
within `--seconds`, imports not counted: then the part that runs is ended, and it and what is
left are named. A call that waits for the device is not interrupted. Ends with 1 where a part failed or had no
time. Parts run in the order above. One that cannot run says so. With `--device cpu` the sizes are tiny: that
tests this script.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretrain" / "step"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (settings of a training process, before torch)

# isort: split
import numpy as np
import torch
from gpu_checks import exactness, replay, resume, waits
from gpu_kernels import attention, bandwidth, loss_times
from gpu_peers import PEERS, Late, Peer, Skipped, of_peer, settle
from gpu_tests import GpuTests

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.commands.plan import GPUS, MEASURED
from pretrain.common.transfer import Numbers
from pretrain.config.recipe import validate_config
from pretrain.data.batch import RankBatch, View
from pretrain.data.masking import mask_tokens
from pretrain.data.tokenizer import train_tokenizer
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective
from pretrain.start.devices import allow_tf32
from pretrain.start.estimate import (
    assumed_batch,
    layout_of,
    measure_model,
    memory,
    peak,
    share_reached,
    step_flops,
)
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.graphs import Graphs, Record
from pretrain.step.model import SentenceModel
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch
from pretrain.telemetry.throughput import measure_peak_flops, model_flops_per_token


@dataclass(frozen=True)
class Size:
    """What is run: an encoder, and steps of so many sequences.

    length: of masked sequences, in tokens. short: most tokens of a sentence. mini_batch: sentences that a
    peer's cached loss takes at a time.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    masked: int
    sentences: int
    steps: int
    micro_batch_tokens: int
    short: int
    mini_batch: int


SIZES = {
    "cuda": Size(12, 768, 12, 30_522, 512, 128, 512, 10, 32_768, 32, 512),
    "cpu": Size(2, 32, 4, 400, 48, 8, 8, 2, 256, 16, 4),
}
BATCHES = {"batch64": 64, "batch512": 512, "batch8192": 8192, "batch65536": 65_536}
TINY = 1024  # a CPU takes batches that are so many times smaller, and at least 2


AGAIN = 2.0
"""Seconds until a part is told again that the time is over: it may be lost in a destructor or a recording."""


class OutOfTime(BaseException):
    """The time is over. Python raises it between two operations, so a call that waits is ended late."""


class Accept:
    """Everything that the parts share.

    found: the outcomes so far. tests, peers: what runs beside. record: what records graphs; None: CUDA.
    """

    def __init__(self, device: str):
        self.device, self.size = torch.device(device), SIZES[device]
        self.found: dict[str, dict[str, Any]] = {}
        self.tests: GpuTests | None = None
        self.peers: dict[str, Peer] = {}
        self.record: Record | None = None
        random = np.random.default_rng(0)
        letters = list("etaoinshrdlu")
        words = ["".join(random.choice(letters, random.integers(2, 9))) for _ in range(2_000)]
        lengths = np.clip(random.lognormal(2.9, 0.5, 2_000).astype(int), 3, 60)
        self.texts = [" ".join(random.choice(words, count)) + "." for count in lengths]
        size = self.size.vocabulary
        self.tokenizer = train_tokenizer(iter(self.texts), "wordpiece", size, max_length=64, exact=True)
        # the texts fill a part of BERT's vocabulary; as large as it is the product with it must be
        self.tokenizer.add_tokens([f"[unused{number}]" for number in range(size - len(self.tokenizer))])
        assert len(self.tokenizer) == size
        self.sentences = Ragged.from_sequences(
            self.tokenizer(self.texts, truncation=True, max_length=self.size.short)["input_ids"]
        )
        ids = random.integers(5, len(self.tokenizer), (64, self.size.length))
        self.long = Ragged.from_sequences(ids.astype(np.int32))

    def architecture(self, dropout: float) -> dict[str, Any]:
        size = self.size
        return {
            "type": "bert",
            "layers": size.layers,
            "hidden_size": size.width,
            "heads": size.heads,
            "intermediate_size": 4 * size.width,
            "max_positions": size.length,
            "dropout": dropout,
            "attention_dropout": dropout,
        }

    def run(
        self, objective: str, sequences: int, seed: int = 0, attention: str = "fast", **train: Any
    ) -> Run:
        """Build an engine in bfloat16; train: more settings, else ZeRO 0."""
        dropout = 0.1
        model = self.architecture(dropout)
        model.pop("intermediate_size")
        tree = {
            "name": "accept",
            "data": {"lanes": 1},
            "model": model | {"pooling": "mean"},
            "objective": {"name": objective} | ({} if objective == "mlm" else {"mlm": {"weight": 0.0}}),
            "train": {
                "global_batch": sequences,
                "steps": 1_000,
                "zero": 0,
                "precision": "bf16",
                "micro_batch_tokens": self.size.micro_batch_tokens,
            }
            | train,
        }
        config = validate_config(tree, "accept")
        allow_tf32(config)
        torch.manual_seed(seed)
        encoder = build_encoder(self.architecture(dropout), self.tokenizer, "mean")
        encoder.exact_attention = attention == "exact"
        engine = build_engine(SentenceModel(encoder, build_objective(config, encoder), "bf16"), config)
        engine.train()
        return Run(self, config, engine)

    def library_model(self) -> torch.nn.Module:
        """Build the library's masked language model of the same sizes."""
        import transformers

        torch.manual_seed(0)
        config = build_encoder(self.architecture(0.1), self.tokenizer).lm.config
        model = transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")
        return model.to(self.device).train()

    def padded(self, sequences: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and mask [N, short] of sentences on the device, int64."""
        ids = np.zeros((2, len(sequences), self.size.short), dtype=np.int64)
        there = np.arange(self.size.short) < sequences.lengths[:, None]
        ids[0][there], ids[1][there] = sequences.ids, 1
        return tuple(torch.from_numpy(ids).to(self.device))

    def batch(self, part: str) -> int:
        """Return how many sentences a part's steps have."""
        return BATCHES[part] if self.device.type == "cuda" else max(2, BATCHES[part] // TINY)

    def start_beside(self, parts: list[str]) -> None:
        """Start what runs beside the parts that time nothing, once."""
        if self.device.type == "cuda" and "tests" in parts and self.tests is None:
            self.tests = GpuTests()
        for part in PEERS.keys() & set(parts) - self.peers.keys():
            self.peers[part] = Peer(part, self.device.type)

    def stop_beside(self) -> None:
        for beside in (self.tests, *self.peers.values()):
            if beside is not None:
                beside.stop()

    def free(self) -> None:
        """Give back what the device's allocator keeps, and forget its peak."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else 0.0

    def seconds(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Run:
    """Steps of one engine: of masked long sequences, or of sentences in two views."""

    def __init__(self, accept: Accept, config: Any, engine: Any):
        self.accept, self.config, self.engine = accept, config, engine
        graphs = Graphs(engine, config.train.graphs, record=accept.record)
        self.whole = WholeBatch(engine, 0, config.train.micro_batch, graphs=graphs)
        self.update = Update(engine, config.train.clip, graphs=graphs)
        self.vocabulary = Vocabulary.from_tokenizer(accept.tokenizer)

    def batch(self, step: int) -> RankBatch:
        masks = self.config.objective.name == "mlm"
        corpus = self.accept.long if masks else self.accept.sentences
        chosen = np.random.default_rng([step]).integers(0, len(corpus), self.config.train.global_batch)
        original, numbers = corpus.take(chosen), chosen.astype(np.uint64)
        keys = sequence_keys(0, step, numbers, 0, "mask")
        view = View(original, chosen, np.ones(len(chosen), bool))
        return RankBatch(
            step=step,
            epoch=0,
            sequence_ids=numbers,
            original=original,
            masked=[mask_tokens(original, keys, self.vocabulary)] if masks else [],
            views={} if masks else {"anchor": view, "positive": view},
            labels=None,
            substitutions=[],
        )

    def step(self, number: int) -> tuple[int, Numbers]:
        return self.step_of(self.batch(number))

    def step_of(self, batch: RankBatch) -> tuple[int, Numbers]:
        """Take a step; return its tokens, and its numbers, which nobody has waited for."""
        result = self.whole.compute(batch)
        norm, applied = self.update.apply(result.losses["total"])
        return result.tokens, Numbers({"loss": result.losses["total"], "norm": norm, "applied": applied})

    def close(self) -> None:
        self.engine.destroy()
        self.whole = self.engine = self.update = None

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.engine.module.parameters()]


def of_batch(part: str) -> Callable[[Accept], dict[str, Any]]:
    """Return the part of steps of so many sentences."""

    def run_part(accept: Accept) -> dict[str, Any]:
        batch = accept.batch(part)
        steps = accept.size.steps if part != "batch8192" else 2
        found: dict[str, Any] = {}
        settings = [("off", 0), ("auto", 0)] + [("auto", 1)] * (part == "batch512")
        for graphs, zero in settings:
            run = accept.run("simcse", batch, graphs=graphs, zero=zero)
            base = run.engine.module.encoder.lm.base_model
            flops = model_flops_per_token(base, accept.sentences.lengths.tolist())
            ours = found[f"graphs {graphs}" + ", ZeRO 1" * zero] = timed(accept, run, flops, steps)
            if graphs == "auto":
                ours |= planned(accept, run)
            run.close()
        return found

    return run_part


def batch65536(accept: Accept) -> dict[str, Any]:
    """loss_share: of a step, the loss's part, in TF32."""
    batch = accept.batch("batch65536")
    run = accept.run("simcse", batch, graphs="auto")
    flops = model_flops_per_token(run.engine.module.encoder.lm.base_model, accept.sentences.lengths.tolist())
    step = timed(accept, run, flops, count=1, met=1)
    run.close()
    accept.free()
    alone = loss_times(accept, batch)
    share = round(alone["info_nce in TF32, ms"] / step["step_ms"], 4)
    return {"step": step, "loss_share": share, "loss alone": alone}


def masked(accept: Accept) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, graphs in (("fast", "off"), ("fast", "auto"), ("exact", "auto")):
        accept.free()
        run = accept.run("mlm", accept.size.masked, graphs=graphs, attention=kind)
        flops = model_flops_per_token(run.engine.module.encoder.lm, accept.long.lengths.tolist(), 0.15)
        ours = found[f"{kind}, graphs {graphs}"] = timed(accept, run, flops, accept.size.steps // 2)
        if kind == "fast":
            ours |= planned(accept, run)
        run.close()
    return found


def planned(accept: Accept, run: Run) -> dict[str, float]:
    """Return the memory at the peak as a plan has it; with graphs, on a card that it knows, the speed too."""
    corpus = accept.long if run.config.objective.name == "mlm" else accept.sentences
    batch, mean = assumed_batch(run.config, round(corpus.lengths.mean()))
    batch = replace(batch, longest=int(corpus.lengths.max()))
    model = measure_model(run.config, accept.tokenizer, mean, "bf16")
    layout = layout_of(run.config, 1, run.config.train.zero)
    found = {"planned_gb": round(peak(memory(model, batch, layout)) / 1e9, 2)}
    device = torch.cuda.get_device_name().lower() if accept.device.type == "cuda" else ""
    known = next((name for name in MEASURED if name in device), None)
    if known and run.config.train.graphs == "auto":
        flops = GPUS[known][0] * 1e12
        reached = flops * share_reached(MEASURED[known], model, batch, layout, mean, flops)
        speed = batch.tokens * reached / step_flops(model, batch, layout)
        found["planned_tokens_per_second"] = round(speed)
    return found


def timed(accept: Accept, run: Run, flops_per_token: float, count: int, met: int = 2) -> dict[str, Any]:
    """Return speed and use of `count` steps that were met before, twice: their graphs are recorded.

    met: how often else; once is enough where a step has many rows of a shape.

    host_ms: until a step was queued, of step_ms. peak_gb: of the device's allocator.
    """
    accept.free()
    batches = [run.batch(number) for number in range(count)]
    for batch in batches * met:
        run.step_of(batch)[1].read()
    started, tokens = accept.seconds(), 0
    for batch in batches:
        tokens += run.step_of(batch)[0]
    queued = time.perf_counter() - started
    seconds = accept.seconds() - started
    return {
        "tokens_per_second": round(tokens / seconds),
        "share": round(tokens / seconds * flops_per_token / measured_peak(accept), 3),
        "step_ms": round(seconds / count * 1e3, 2),
        "host_ms": round(queued / count * 1e3, 2),
        "peak_gb": round(accept.peak_gb(), 2),
        "graphs": len(run.whole.graphs.graphs),
    }


@cache
def measured_peak(accept: Accept) -> float:
    on_gpu = accept.device.type == "cuda"  # a CPU may take half a minute in bfloat16
    return measure_peak_flops(accept.device, torch.bfloat16 if on_gpu else torch.float32)


def tests(accept: Accept) -> dict[str, Any]:
    if accept.tests is None:
        raise Skipped("they need a CUDA device")
    return accept.tests.outcome()


BESIDE: dict[str, Callable[[Accept], dict[str, Any]]] = {
    "exactness": exactness,
    "replay": replay,
    "resume": resume,
    "waits": waits,
    "tests": tests,
    "settle": settle,
}
"""Parts that time nothing."""
PARTS = {
    "attention": attention,
    "bandwidth": bandwidth,
    **BESIDE,
    **{part: of_batch(part) for part in BATCHES if part != "batch65536"},
    "batch65536": batch65536,
    "masked": masked,
    **{part: of_peer(part) for part in PEERS},
}
HEAD = ("outcome", "seconds")  # of an outcome, what has a column of its own
CLOSING = {"fail": "failed", "late": "no time", "skip": "skipped"}
ENDED = {"outcome": "late", "reason": "ended, as the time was over"}


def outcome_of(part: str, accept: Accept, parts: list[str], until: float) -> dict[str, Any]:
    """Run a part; whatever it raises is its outcome, and so is the end of its time."""
    started, seconds = time.monotonic(), until - time.monotonic()
    if seconds <= 0:
        return {"outcome": "late", "reason": "not begun: the time was over", "seconds": 0.0}
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        if part in BESIDE or part in PEERS:
            accept.start_beside(parts)
        if part not in BESIDE:
            settle(accept)
        outcome = {"outcome": "pass"} | PARTS[part](accept)
    except Skipped as reason:
        outcome = {"outcome": "skip", "reason": str(reason)}
    except Late as reason:
        outcome = {"outcome": "late", "reason": str(reason)}
    except OutOfTime:
        outcome = ENDED
    except Exception as error:  # one part that fails must not hide the others
        outcome = {"outcome": "fail", "reason": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome | {"seconds": round(time.monotonic() - started, 1)}


def end(*_: object) -> None:
    raise OutOfTime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_accept.json"))
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--seconds", type=float, default=240, help="within which all parts must end")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here; --device cpu tests this script at a tiny size")
        return 2
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    until = time.monotonic() + options.seconds
    signal.signal(signal.SIGALRM, end)
    start_processes()
    order = {part: number for number, part in enumerate(PARTS)}
    accept, parts = (
        Accept(options.device),
        sorted(options.parts.split(","), key=lambda part: order.get(part, -1)),
    )
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, tiny sizes"
    found = {"machine": machine, "torch": torch.__version__, "parts": accept.found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'part':12}{'outcome':9}{'seconds':>7}  what was found on {machine}")
    try:
        for part in parts:
            begun = time.monotonic()
            try:
                outcome = outcome_of(part, accept, parts, until)
            except OutOfTime:  # while it dealt with how the part ended
                signal.setitimer(signal.ITIMER_REAL, 0)
                outcome = ENDED | {"seconds": round(time.monotonic() - begun, 1)}
            accept.found[part] = outcome
            lines = [f"{key} {value}" for key, value in outcome.items() if key not in HEAD]
            print(
                f"{part:12}{outcome['outcome']:9}{outcome['seconds']:7.1f}  " + f"\n{'':30}".join(lines),
                flush=True,
            )
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        accept.stop_beside()
    ended = {kind: [part for part in parts if accept.found[part]["outcome"] == kind] for kind in CLOSING}
    for kind, named in ended.items():
        if named:
            print(f"{CLOSING[kind]}: {', '.join(named)}")
    torch.distributed.destroy_process_group()
    return int(bool(ended["fail"] or ended["late"]))


if __name__ == "__main__":
    sys.exit(main())
