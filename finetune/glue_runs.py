"""The runs that GLUE's figures come from: one per task, seed and hyper-parameters, each with a result file of its own."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finetune.finetuning import REGRESSION, FineTuning, Recipe, read_tensors, write_tensors
from finetune.glue_data import TASKS, Examples, TaskData
from finetune.glue_metrics import scores_of
from finetune.labelled import Encoded, Source, encode_examples
from pretrain.durable import replace_durably, to_json
from pretrain.errors import UserError

EPOCHS = 10
MAX_LENGTH = 512
FAIRSEQ: dict[str, tuple[float, int, float]] = {
    "MNLI": (1e-5, 32, 7432 / 123873),
    "QNLI": (1e-5, 32, 1986 / 33112),
    "QQP": (1e-5, 32, 28318 / 113272),
    "RTE": (2e-5, 16, 122 / 2036),
    "SST-2": (1e-5, 32, 1256 / 20935),
    "MRPC": (1e-5, 16, 137 / 2296),
    "CoLA": (1e-5, 16, 320 / 5336),
    "STS-B": (2e-5, 16, 214 / 3598),
    "WNLI": (2e-5, 16, 0.06),
}
"""Learning rate, batch, warm-up / total updates: fairseq's examples/roberta/README.glue.md. Its totals are 10 epochs of its
own batches, which a limit of tokens makes smaller than here where texts are long, so the share is what is kept. WNLI, which
RoBERTa treats by another method, has RTE's."""
GRID = [(lr, batch) for batch in (16, 32) for lr in (1e-5, 2e-5, 3e-5)]
"""RoBERTa's search for single-task dev results (Liu et al. 2019, section 5.1), with 6 % of warm-up."""
MNLI_STARTS = ("RTE", "MRPC", "STS-B")
"""What RoBERTa's leaderboard entry (not its dev figures) starts from the model of MNLI."""


@dataclass(frozen=True)
class Run:
    """One fine-tuning: a task, a seed, and the hyper-parameters that a sweep varies."""

    task: str
    seed: int
    lr: float
    batch_size: int
    warmup: float

    @property
    def name(self) -> str:
        return f"{self.task} seed {self.seed}, lr {self.lr:g}, batch {self.batch_size}"


@dataclass(frozen=True)
class Options:
    """What all runs of an evaluation have in common."""

    seeds: int = 5
    sweep: bool = False
    mnli_init: bool = False
    predict: bool = False
    epochs: int = EPOCHS
    max_train: int = 0
    """Training examples at most; 0: all."""
    lr: float = 0.0
    batch_size: int = 0
    """In place of the recipe's, where not 0."""
    precision: str = "fp32"
    token_budget: int = 16384

    def runs(self, tasks: Sequence[str]) -> list[Run]:
        """All runs, task by task (MNLI first if others start from it), setting by setting, seed by seed."""
        ordered = sorted(tasks, key=lambda task: not (self.mnli_init and task == "MNLI"))
        runs = []
        for task in ordered:
            if task == "AX":
                continue
            lr, batch, warmup = FAIRSEQ[task]
            settings = [(*pair, 0.06) for pair in GRID] if self.sweep else [(self.lr or lr, self.batch_size or batch, warmup)]
            runs += [Run(task, seed, *setting) for setting in settings for seed in range(1, self.seeds + 1)]
        return runs

    def mnli_run(self, seed: int) -> Run:
        """The run of MNLI whose model a run of this seed starts from."""
        lr, batch, warmup = FAIRSEQ["MNLI"]
        return Run("MNLI", seed, self.lr or lr, self.batch_size or batch, warmup)


class RunStore:
    """Runs of one model on one set of data files, and the folder of their results.

    A result's file name ends in a digest of everything that it depends on (model, data, hyper-parameters): nothing that was
    computed under other circumstances is taken for it, and whatever is there need not be computed again.

    Args:
        wish: exit status with which to leave, or 0; see FineTuning.
    """

    def __init__(
        self, source: Source, data: dict[str, TaskData], options: Options, folder: Path, wish: Callable[[], int] = lambda: 0,
        checkpoint_seconds: float = 300.0,
    ):
        self.source, self.options, self.folder, self.wish = source, options, folder, wish
        self.checkpoint_seconds = checkpoint_seconds
        self.data = {name: self._limited(task) for name, task in data.items()}
        self._digests: dict[str, str] = {}
        self._encoded: tuple[str, dict[str, Encoded]] = ("", {})

    def result(self, run: Run) -> dict[str, Any] | None:
        """What is on file for a run; None: not computed yet.

        Raises:
            UserError: the file is damaged.
        """
        path = self._path(run, ".json")
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); remove it, and the run is computed again") from error

    def predictions(self, run: Run) -> dict[str, np.ndarray] | None:
        """Test logits float32[N, C] by "TASK/split"; None: not on file, or of other test rows than are there now."""
        path = self._path(run, ".predictions.pt")
        if not path.is_file():
            return None
        found = {name: logits.numpy() for name, logits in read_tensors(path).items()}
        wanted = {name: len(rows) for name, rows in self._test_sets(run.task).items()}
        return found if {name: len(logits) for name, logits in found.items()} == wanted else None

    def compute(self, run: Run, heading: str) -> None:
        """Fine-tune, or go on where a killed process was, and write the results.

        Raises:
            Interrupted: asked to leave; a checkpoint is beside the results.
            UserError: see FineTuning.
        """
        sets, options, task = self._sets(run.task), self.options, TASKS[run.task]
        initial = self._mnli_encoder(run.seed) if options.mnli_init and run.task in MNLI_STARTS else None
        dev = [split for split in task.dev_splits() if split in sets]
        labelled_ax = run.task == "MNLI" and "AX" in self.data and "dev" in self.data["AX"].splits
        starts_others = options.mnli_init and run == options.mnli_run(run.seed)
        print(f"{heading}{run.name}: {len(sets['train']):,} examples", file=sys.stderr, flush=True)
        begun = time.monotonic()
        training = FineTuning(
            self.source, sets["train"], len(task.labels) or REGRESSION,
            Recipe(run.lr, run.batch_size, options.epochs, run.warmup), run.seed,
            lambda logits: _judge(run.task, {split: (logits(sets[split]), sets[split].targets) for split in dev}),
            precision=options.precision, token_budget=options.token_budget, checkpoint=self._path(run, ".checkpoint"),
            checkpoint_seconds=self.checkpoint_seconds, wish=self.wish, initial=initial,
            keep_weights=labelled_ax or starts_others or options.predict,
        )
        outcome = training.run()
        content = {
            "settings": self._settings(run), "best": outcome.best, "curve": outcome.curve,
            "seconds": outcome.seconds, "tokens_per_second": outcome.tokens_per_second,
            "cut": {split: encoded.cut for split, encoded in sets.items() if encoded.cut},
        }
        if outcome.weights:
            training.load(outcome.weights)
        if starts_others:
            write_tensors(self._path(run, ".weights"), outcome.weights)
        if labelled_ax:
            rows = self._encode("AX", self.data["AX"].splits["dev"])
            content["ax"] = scores_of(TASKS["AX"].metrics, training.logits(rows).argmax(1), rows.targets)
        if options.predict:
            tests = {name: self._encode(name.split("/")[0], rows) for name, rows in self._test_sets(run.task).items()}
            logits = {name: torch.from_numpy(training.logits(rows)) for name, rows in tests.items()}
            write_tensors(self._path(run, ".predictions.pt"), logits)
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_durably(self._path(run, ".json"), to_json(content))
        best = outcome.best
        print(
            f"  {run.name}: {best['value']:.2f} after epoch {best['epoch']:g} ({time.monotonic() - begun:.0f} s)",
            file=sys.stderr, flush=True,
        )

    def _limited(self, data: TaskData) -> TaskData:
        train, most = data.splits.get("train"), self.options.max_train
        if not most or train is None or len(train) <= most:
            return data
        chosen = np.sort(np.random.default_rng(0).permutation(len(train))[:most])
        return TaskData(data.task, data.splits | {"train": train.subset(chosen)}, data.missing, data.notes)

    def _sets(self, task: str) -> dict[str, Encoded]:
        """Training and dev sets, tokenised; kept until another task is asked for."""
        if self._encoded[0] != task:
            splits = self.data[task].splits.items()
            self._encoded = (task, {name: self._encode(task, rows) for name, rows in splits if not name.startswith("test")})
        return self._encoded[1]

    def _test_sets(self, task: str) -> dict[str, Examples]:
        names = [task, "AX"] if task == "MNLI" and "AX" in self.data else [task]
        splits = [(name, split) for name in names for split in self.data[name].splits if split.startswith("test")]
        return {f"{name}/{split}": self.data[name].splits[split] for name, split in splits}

    def _encode(self, task: str, rows: Examples) -> Encoded:
        # fairseq trains STS-B on scores of 0 to 1 (examples/roberta/preprocess_GLUE_tasks.sh).
        targets = rows.targets / 5 if rows.targets is not None and not TASKS[task].labels else rows.targets
        return encode_examples(self.source, rows.first, rows.second, targets, MAX_LENGTH)

    def _mnli_encoder(self, seed: int) -> dict[str, Tensor]:
        run = self.options.mnli_run(seed)
        path = self._path(run, ".weights")
        if not path.is_file():
            self.compute(run, "to start from: ")
        weights = read_tensors(path)
        return {name.removeprefix("encoder."): tensor for name, tensor in weights.items() if name.startswith("encoder.")}

    def _settings(self, run: Run) -> dict[str, Any]:
        options = self.options
        settings = asdict(run) | {
            "epochs": options.epochs, "max_length": MAX_LENGTH, "precision": options.precision,
            "model": self.source.fingerprint, "data": self._digest(run.task),
        }
        if options.mnli_init and run.task in MNLI_STARTS:
            settings["start"] = self._settings(options.mnli_run(run.seed))
        return settings

    def _path(self, run: Run, ending: str) -> Path:
        digest = hashlib.sha256(json.dumps(self._settings(run), sort_keys=True).encode()).hexdigest()[:10]
        return self.folder / f"{run.task}-lr{run.lr:g}-batch{run.batch_size}-seed{run.seed}-{digest}{ending}"

    def _digest(self, task: str) -> str:
        """Of the training and dev rows (MNLI: AX's labelled ones too)."""
        if task not in self._digests:
            digest = hashlib.sha256()
            for name in (task, "AX") if task == "MNLI" and "AX" in self.data else (task,):
                for split, rows in self.data[name].splits.items():
                    if not split.startswith("test"):
                        targets = rows.targets.tolist()
                        digest.update(json.dumps([name, split, rows.first, rows.second, targets]).encode())
            self._digests[task] = digest.hexdigest()
        return self._digests[task]


def _judge(name: str, found: dict[str, tuple[np.ndarray, np.ndarray]]) -> tuple[float, dict[str, float]]:
    """The deciding figure and all scores, x 100, from each dev split's logits [N, C] and targets."""
    task = TASKS[name]
    by_split = {
        split: scores_of(task.metrics, logits.argmax(1) if task.labels else logits[:, 0], targets)
        for split, (logits, targets) in found.items()
    }
    if name != "MNLI":
        scores = by_split["dev"]
        return scores[task.headline], scores
    halves = {split.removeprefix("dev_"): scores["accuracy"] for split, scores in by_split.items()}
    mean = sum(halves.values()) / len(halves)
    return mean, {"accuracy": mean, **halves}
