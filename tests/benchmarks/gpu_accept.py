"""Accept a GPU: does the step compute there what it should, does it wait, and how fast is it?

    python tests/benchmarks/gpu_accept.py [--device cuda|cpu] [--out FILE.json] [--parts tests,waits]

waits      steps under torch's own alarm for a host that waits
replay     a second pass draws the same dropout
resume     bit for bit
exactness  float32 and bfloat16 gradients against a padded float64 reference, without dropout
batch64, batch512, batch8192
           steps of so many sentences: with graphs and without, beside a padded and compiled transformers, the
           largest batch beside sentence-transformers' cached loss
masked     steps of sequences of 512 tokens, with graphs and without, with model.attention fast and exact,
           memory at the peak against a plan's, beside a compiled transformers
tests      those that are marked gpu

A speed is real tokens a second, its share that of a measured product. Prints a line as each part ends, and
writes JSON again; ends with 1 where a part failed. A part that cannot run, or does not begin within
`--seconds`, says so. With `--device cpu` the sizes are tiny: that tests this script.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (settings of a training process, before torch)

# isort: split
import numpy as np
import torch
from gpu_peers import Skipped, cached, compiled_masked, compiled_sentences

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver
from pretrain.commands.estimate import measure_model, memory, peak
from pretrain.commands.plan import assumed_batch, layout_of
from pretrain.common.transfer import Numbers
from pretrain.config.recipe import validate_config
from pretrain.data.batch import RankBatch, View
from pretrain.data.masking import mask_tokens
from pretrain.data.tokenizer import train_tokenizer
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective
from pretrain.step.engine import build_engine, start_processes
from pretrain.step.graphs import Graphs
from pretrain.step.model import SentenceModel
from pretrain.step.plan import VIEWS, passes_of
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch
from pretrain.telemetry.throughput import measure_peak_flops, model_flops_per_token

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "tests" / "pretrain" / "exactness_worker.py"
CASES = "mlm,clear_mean,clear_cls,simcse_supervised"
CLOSE = {"fp32": 1e-5, "bf16": 0.25}  # as tests/pretrain/step/test_exactness.py has it


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
BATCHES = {"batch64": 64, "batch512": 512, "batch8192": 8192}
COMPILING = 40  # seconds that a peer may take
TINY = 1024  # a CPU takes batches that are so many times smaller, and at least 2


class Accept:
    """Everything that the parts share."""

    def __init__(self, device: str):
        self.device, self.size, self.until = torch.device(device), SIZES[device], math.inf
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
        """Build an engine in bfloat16; train: more settings, else ZeRO 0 without graphs."""
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
                "graphs": "off",
            }
            | train,
        }
        config = validate_config(tree, "accept")
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
        graphs = Graphs(engine, config.train.graphs)
        self.whole = WholeBatch(engine, 0, config.train.micro_batch_tokens, graphs=graphs)
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


def report_of_worker(accept: Accept) -> list[dict]:
    """Run the exactness tests' own worker on the device, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        words = [sys.executable, str(WORKER), str(out), "0", CASES, "0.0", "off", "plain", "fp32,bf16"]
        ended = subprocess.run(
            [*words, accept.device.type],
            env=os.environ | {"PYTHONPATH": str(ROOT), "MASTER_PORT": "0"},
            capture_output=True,
            text=True,
            timeout=400,
        )
        if ended.returncode:
            raise RuntimeError((ended.stdout + ended.stderr).strip()[-400:])
        return json.loads(out.read_text())["rows"]


def exactness(accept: Accept) -> dict[str, Any]:
    rows = report_of_worker(accept)
    worst = {kind: max(row["error"] for row in rows if row["precision"] == kind) for kind in ("fp32", "bf16")}
    for kind, error in worst.items():
        assert error < CLOSE[kind], f"{kind} gradients are off by {error:.2g} of their norm"
    return {"gradients off by": {kind: float(f"{error:.2g}") for kind, error in worst.items()}}


def replay(accept: Accept) -> dict[str, Any]:
    run = accept.run("simcse", accept.size.sentences)
    model, batch = run.engine.module, run.batch(0)
    part = passes_of(batch, model.objective, accept.size.micro_batch_tokens, 0, 0)[VIEWS]
    row = part.micro_batches(8)[-1]
    moved = row.moved(iter([tensor.to(accept.device) for tensor in row.moving]))
    with torch.no_grad():
        first, again = model.embed(moved), model.embed(moved)
        model.eval()
        without = model.embed(moved)
    run.engine.destroy()
    assert torch.equal(first, again), "a second pass drew other dropout"
    assert not torch.equal(first, without), "there was no dropout"
    return {"sequences": len(row.lengths)}


def resume(accept: Accept) -> dict[str, Any]:
    if accept.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = accept.run("simcse", accept.size.sentences)
            for number in range(2):
                run.step(number)
            state = {"step": 2}
            saver = Saver(run.engine)
            saved = saver.save(Path(folder), state, Retention(1), background=False)
            saver.close()
            for number in range(2, 4):
                run.step(number)
            expected = run.weights()
            run.engine.destroy()
            other = accept.run("simcse", accept.size.sentences, seed=1)
            store.load(saved, other.engine)
            for number in range(2, 4):
                other.step(number)
            differing = sum(not torch.equal(a, b) for a, b in zip(expected, other.weights()))
            other.engine.destroy()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not differing, f"{differing} of {len(expected)} parameters differ after a resume"
    return {"parameters": len(expected)}


def waits(accept: Accept) -> dict[str, Any]:
    if accept.device.type != "cuda":
        raise Skipped("torch's alarm is CUDA's; tests/pretrain/step/test_waits.py counts waits on a CPU")
    run = accept.run("simcse", accept.size.sentences)
    for number in range(2):
        run.step(number)[1].read()
    torch.cuda.set_sync_debug_mode("error")
    try:
        numbers = [run.step(number)[1] for number in (2, 3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    read = [of_step.read() for of_step in numbers]
    run.engine.destroy()
    assert all(of_step["applied"] for of_step in read), "a step was not applied"
    return {"steps without a wait": len(numbers)}


def of_batch(part: str) -> Callable[[Accept], dict[str, Any]]:
    """Return the part of steps of so many sentences."""

    def run_part(accept: Accept) -> dict[str, Any]:
        batch = BATCHES[part] if accept.device.type == "cuda" else max(2, BATCHES[part] // TINY)
        steps = accept.size.steps if part != "batch8192" else 2
        found: dict[str, Any] = {}
        settings = [("off", 0), ("auto", 0)] + [("auto", 1)] * (part == "batch512")
        for graphs, zero in settings:
            run = accept.run("simcse", batch, graphs=graphs, zero=zero)
            base = run.engine.module.encoder.lm.base_model
            flops = model_flops_per_token(base, accept.sentences.lengths.tolist())
            found[f"graphs {graphs}" + ", ZeRO 1" * zero] = timed(accept, run, flops, steps)
            run.close()
        peer = cached if part == "batch8192" else compiled_sentences
        return found | beside(accept, found["graphs auto"], lambda: peer(accept, batch))

    return run_part


def masked(accept: Accept) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attention, graphs in (("fast", "off"), ("fast", "auto"), ("exact", "auto")):
        accept.free()
        run = accept.run("mlm", accept.size.masked, graphs=graphs, attention=attention)
        flops = model_flops_per_token(run.engine.module.encoder.lm, accept.long.lengths.tolist(), 0.15)
        ours = found[f"{attention}, graphs {graphs}"] = timed(accept, run, flops, accept.size.steps // 2)
        if graphs == "off":
            ours["planned_gb"] = planned_gb(accept, run)
        run.close()
    return found | beside(accept, found["fast, graphs auto"], lambda: compiled_masked(accept))


def planned_gb(accept: Accept, run: Run) -> float:
    """Return the memory at the peak as a plan has it."""
    batch, mean = assumed_batch(run.config, accept.size.length)
    batch = replace(batch, longest=accept.size.length)
    model = measure_model(run.config, accept.tokenizer, mean, "bf16")
    return round(peak(memory(model, batch, layout_of(run.config, 1, 0))) / 1e9, 2)


def timed(accept: Accept, run: Run, flops_per_token: float, count: int) -> dict[str, Any]:
    """Return speed and use of `count` steps that were met before, twice: their graphs are recorded.

    host_ms: until a step was queued, of step_ms. peak_gb: of the device's allocator.
    """
    accept.free()
    batches = [run.batch(number) for number in range(count)]
    for batch in [*batches, *batches]:
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
    return measure_peak_flops(accept.device, torch.bfloat16)


def beside(accept: Accept, ours: dict[str, Any], peer: Callable[[], float]) -> dict[str, Any]:
    """Return a peer's speed and our ratio to it, or why it did not run."""
    accept.free()
    if time.monotonic() > accept.until - COMPILING:
        return {"peer": "not run: no time was left"}
    try:
        speed = peer()
    except Skipped as reason:
        return {"peer": f"not run: {reason}"}
    except Exception as error:  # theirs, not ours
        return {"peer": f"failed: {type(error).__name__}: {str(error)[:200]}"}
    ratio = round(ours["tokens_per_second"] / speed, 2)
    return {
        "peer_tokens_per_second": round(speed),
        "ratio": ratio,
        "peer_peak_gb": round(accept.peak_gb(), 2),
    }


def tests(accept: Accept) -> dict[str, Any]:
    if accept.device.type != "cuda":
        raise Skipped("they need a CUDA device")
    marked = [str(path) for path in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text()]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *marked]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=180)
    last = ended.stdout.strip().splitlines()[-1:]
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert ended.returncode == 0, " ".join([*failed, *last, ended.stderr[-300:]])
    return {"said": last[0]}


PARTS: dict[str, Callable[[Accept], dict[str, Any]]] = {
    "waits": waits,
    "replay": replay,
    "resume": resume,
    "exactness": exactness,
    **{part: of_batch(part) for part in BATCHES},
    "masked": masked,
    "tests": tests,
}


HEAD = ("outcome", "seconds")  # of an outcome, what has a column of its own


def outcome_of(part: str, accept: Accept) -> dict[str, Any]:
    """Run a part; whatever it raises is its outcome."""
    started = time.perf_counter()
    try:
        outcome = {"outcome": "pass"} | PARTS[part](accept)
    except Skipped as reason:
        outcome = {"outcome": "skip", "reason": str(reason)}
    except Exception as error:  # one part that fails must not hide the others
        outcome = {"outcome": "fail", "reason": f"{type(error).__name__}: {error}"}
    return outcome | {"seconds": round(time.perf_counter() - started, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=SIZES, default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_accept.json"))
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, with commas")
    parser.add_argument("--seconds", type=float, default=240, help="after which no part begins")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here; --device cpu tests this script at a tiny size")
        return 2
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    start_processes()
    accept, outcomes = Accept(options.device), {}
    accept.until = began + options.seconds
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, tiny sizes"
    found = {"machine": machine, "torch": torch.__version__, "parts": outcomes}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{'part':11}{'outcome':9}{'seconds':>7}  what was found on {machine}")
    for part in options.parts.split(","):
        if time.monotonic() > accept.until:
            outcome = {"outcome": "skip", "reason": "no time was left", "seconds": 0.0}
        else:
            outcome = outcome_of(part, accept)
        outcomes[part] = outcome
        lines = [f"{key} {value}" for key, value in outcome.items() if key not in HEAD]
        print(
            f"{part:11}{outcome['outcome']:9}{outcome['seconds']:7.1f}  " + f"\n{'':29}".join(lines),
            flush=True,
        )
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    torch.distributed.destroy_process_group()
    return int(any(outcome["outcome"] == "fail" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
