"""Accept a GPU: does the step compute there what it should, does it wait, and how fast is it?

    python tests/benchmarks/gpu_accept.py [--device cuda|cpu] [--out FILE.json] [--parts exactness,waits]

exactness  float32 and bfloat16 gradients against a padded float64 reference, without dropout
replay     a second pass draws the same dropout
resume     bit for bit
waits      steps under torch's own alarm for a host that waits
masked, sentences
           tokens a second, and utilisation of the stated peak and of a measured product, beside the
           Trainer and sentence-transformers where these are installed, with flash attention where that is

Prints a table, writes JSON, and ends with 1 where a part failed; a part that cannot run says why. With
`--device cpu` the sizes are tiny: that tests this script. It is to take at most 10 minutes on one GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (settings of a training process, before torch)

# isort: split
import numpy as np
import torch

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.checkpoint import store
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver
from pretrain.commands.plan import GPUS
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
    """What is run: an encoder, and steps of so many sequences. length: of masked sequences, in tokens."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    masked: int
    sentences: int
    steps: int
    micro_batch_tokens: int


SIZES = {
    "cuda": Size(12, 768, 12, 30_522, 512, 128, 512, 10, 32_768),
    "cpu": Size(2, 32, 4, 400, 48, 8, 8, 2, 256),
}


class Skipped(Exception):
    """A part cannot run here; the message says why."""


class Accept:
    """Everything that the parts share."""

    def __init__(self, device: str):
        self.device, self.size = torch.device(device), SIZES[device]
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
            self.tokenizer(self.texts, truncation=True, max_length=min(64, self.size.length))["input_ids"]
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
        self, objective: str, sequences: int, dropout: float = 0.1, seed: int = 0, graphs: str = "off"
    ) -> Run:
        """Build an engine at ZeRO 0, in bfloat16."""
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
                "graphs": graphs,
            },
        }
        config = validate_config(tree, "accept")
        torch.manual_seed(seed)
        encoder = build_encoder(self.architecture(dropout), self.tokenizer, "mean")
        engine = build_engine(SentenceModel(encoder, build_objective(config, encoder), "bf16"), config)
        engine.train()
        return Run(self, config, engine)

    def library_model(self) -> torch.nn.Module:
        """Build the library's masked language model of the same sizes, with flash attention where it is."""
        import transformers

        torch.manual_seed(0)
        config = build_encoder(self.architecture(0.1), self.tokenizer).lm.config
        return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=self.attention())

    def attention(self) -> str:
        return "flash_attention_2" if self.device.type == "cuda" and find_spec("flash_attn") else "sdpa"

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
        self.update = Update(engine, config.train.clip)
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
        """Take a step; return its tokens, and its numbers, which nobody has waited for."""
        result = self.whole.compute(self.batch(number))
        norm, applied = self.update.apply(result.losses["total"])
        return result.tokens, Numbers({"loss": result.losses["total"], "norm": norm, "applied": applied})

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


def masked(accept: Accept) -> dict[str, Any]:
    size = accept.size
    run = accept.run("mlm", size.masked, graphs="auto")
    flops = model_flops_per_token(run.engine.module.encoder.lm, accept.long.lengths.tolist(), 0.15)
    found = timed(accept, run, flops)
    run.engine.destroy()
    return found | beside(accept, found, lambda: trainer(accept))


def sentences(accept: Accept) -> dict[str, Any]:
    run = accept.run("simcse", accept.size.sentences, graphs="auto")
    flops = model_flops_per_token(run.engine.module.encoder.lm.base_model, accept.sentences.lengths.tolist())
    found = timed(accept, run, flops)
    run.engine.destroy()
    return found | beside(accept, found, lambda: sentence_transformers(accept))


def timed(accept: Accept, run: Run, flops_per_token: float) -> dict[str, Any]:
    """Return tokens a second and utilisation of `steps` steps, met before once: their graphs are recorded."""
    steps = range(accept.size.steps)
    for number in [*steps, *steps]:
        run.step(number)[1].read()
    started, tokens = accept.seconds(), 0
    for number in steps:
        tokens += run.step(number)[0]
    speed = tokens / (accept.seconds() - started)
    rate = speed * flops_per_token
    found = {"tokens_per_second": round(speed), "mfu_of_measured": round(rate / measured_peak(accept), 3)}
    if peak := stated_peak(accept):
        found["mfu_of_stated"] = round(rate / peak, 3)
    return found


def measured_peak(accept: Accept) -> float:
    return measure_peak_flops(accept.device, torch.bfloat16)


def stated_peak(accept: Accept) -> float | None:
    """Return the maker's FLOP/s of dense bfloat16 products, where the table of a plan has the device."""
    if accept.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name().lower()
    return next((peak * 1e12 for key, (peak, _) in GPUS.items() if key.split("-")[0] in name), None)


def beside(accept: Accept, ours: dict[str, Any], peer: Callable[[], tuple[str, float]]) -> dict[str, Any]:
    """Return a peer's speed and our ratio to it, or why it did not run."""
    try:
        name, speed = peer()
    except Skipped as reason:
        return {"peer": f"not run: {reason}"}
    except Exception as error:  # theirs, not ours
        return {"peer": f"failed: {type(error).__name__}: {error}"}
    return {
        "peer": name,
        "peer_tokens_per_second": round(speed),
        "ratio": round(ours["tokens_per_second"] / speed, 2),
    }


def steps_of(accept: Accept, trainer_class: Any, arguments_class: Any, batch: int, **more: Any) -> float:
    """Return the seconds of `steps` steps of a Trainer, after one to warm up."""
    import transformers

    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            times.append(accept.seconds())

    with tempfile.TemporaryDirectory() as folder, not_a_rank():
        arguments = arguments_class(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=accept.size.steps + 1,
            use_cpu=accept.device.type == "cpu",
            bf16=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer_class(args=arguments, callbacks=[Clock()], **more).train()
    return times[-1] - times[0]


@contextlib.contextmanager
def not_a_rank() -> Iterator[None]:
    """Hide the variables of a rank, by which a Trainer takes itself for a distributed run."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ |= hidden


def trainer(accept: Accept) -> tuple[str, float]:
    """Return the speed of transformers' Trainer; its sequences are all of one length, so it pads nothing."""
    if not find_spec("accelerate"):
        raise Skipped("accelerate is not installed, which the Trainer needs")
    import transformers

    size = accept.size
    batch = min(size.masked, max(1, size.micro_batch_tokens // size.length))
    seconds = steps_of(
        accept,
        transformers.Trainer,
        transformers.TrainingArguments,
        batch,
        model=accept.library_model(),
        data_collator=transformers.DataCollatorForLanguageModeling(accept.tokenizer, mlm_probability=0.15),
        train_dataset=[{"input_ids": row.tolist()} for row in accept.long] * batch,
    )
    return f"transformers.Trainer, {accept.attention()}", size.steps * batch * size.length / seconds


def sentence_transformers(accept: Accept) -> tuple[str, float]:
    """Return the speed of sentence-transformers, every sentence paired with itself; it counts both."""
    for name in ("accelerate", "sentence_transformers", "datasets"):
        if not find_spec(name):
            raise Skipped(f"{name} is not installed")
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    attention = accept.attention()
    with tempfile.TemporaryDirectory() as folder:
        accept.library_model().base_model.save_pretrained(folder)
        accept.tokenizer.save_pretrained(folder)
        words = Transformer(
            folder,
            max_seq_length=min(64, accept.size.length),
            model_kwargs={"attn_implementation": attention},
            unpad_inputs=attention == "flash_attention_2",
        )
        modules = [words, Pooling(accept.size.width, "mean")]
        model = SentenceTransformer(modules=modules, device=accept.device.type)
    batch = accept.size.sentences
    texts = accept.texts * (1 + batch * (accept.size.steps + 1) // len(accept.texts))
    seconds = steps_of(
        accept,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        batch,
        model=model,
        loss=MultipleNegativesRankingLoss(model),
        train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
    )
    tokens = 2 * batch * accept.size.steps * float(accept.sentences.lengths.mean())
    return f"sentence-transformers, {attention}", tokens / seconds


PARTS: dict[str, Callable[[Accept], dict[str, Any]]] = {
    "exactness": exactness,
    "replay": replay,
    "resume": resume,
    "waits": waits,
    "masked": masked,
    "sentences": sentences,
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
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here; --device cpu tests this script at a tiny size")
        return 2
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    start_processes()
    accept, outcomes = Accept(options.device), {}
    print(f"{'part':11}{'outcome':9}{'seconds':>7}  what was found")
    for part in options.parts.split(","):
        outcomes[part] = outcome = outcome_of(part, accept)
        found = ", ".join(f"{key} {value}" for key, value in outcome.items() if key not in HEAD)
        print(f"{part:11}{outcome['outcome']:9}{outcome['seconds']:7.1f}  {found}", flush=True)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "CPU, tiny sizes"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps({"machine": machine, "torch": torch.__version__, "parts": outcomes}, indent=1) + "\n"
    )
    torch.distributed.destroy_process_group()
    return int(any(outcome["outcome"] == "fail" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
