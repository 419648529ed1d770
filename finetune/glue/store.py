"""Compute the runs that GLUE's figures come from, each with a result file of its own."""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finetune.answers import Answers, examples_digest, from_text, scores_of
from finetune.glue.runs import MAX_LENGTH, GlueOptions, GlueRun, choose
from finetune.tuning import finetuning
from finetune.tuning.labelled import Encoded, PretrainedEncoder, encode_examples
from finetune.tuning.recipe import Recipe
from finetune.tuning.tasks import TASKS, GlueData, LabelledExamples
from pretrain.common.files import make_folder
from pretrain.common.folder_lock import folder_lock


class RunStore:
    """Runs of one model on one set of data files, and the folder of their results.

    A file's name ends in a digest of everything that it depends on. Beside it lie test predictions, with a
    digest of their rows.
    """

    def __init__(
        self,
        source: PretrainedEncoder,
        data: dict[str, GlueData],
        options: GlueOptions,
        folder: Path,
        stop_code: Callable[[], int] = lambda: 0,
    ):
        self.options = options.model_copy(
            update={"precision": finetuning.choose_precision(options.precision)}
        )
        self.source, self.folder, self.stop_code = source, folder, stop_code
        self.data = {name: task.limited(options.max_train) for name, task in data.items()}
        self.runs = options.runs(list(data))
        self._digests: dict[tuple[str, str], str] = {}
        self._encoded: tuple[str, dict[str, Encoded]] = ("", {})

    def result(self, run: GlueRun) -> dict[str, Any] | None:
        """Return the figures on file for a run; None: not computed yet."""
        return finetuning.read_result(self._path(run, ".json"))

    def answers(self, task: str, results: Sequence[Mapping[str, Any]]) -> Answers | None:
        """Return what runs with these results answered to a task's dev sets; None: one kept no answers."""
        if any("answers" not in result for result in results):
            return None
        dev = [split for split in TASKS[task].dev_splits() if split in self.data[task].splits]
        rows = [self.data[task].splits[split] for split in dev]
        gold = np.concatenate([part.targets for part in rows if part.targets is not None])
        given = [from_text(result["answers"]).astype(gold.dtype) for result in results]
        data = hashlib.sha256("".join(self._digest(task, split) for split in dev).encode()).hexdigest()
        sizes = tuple(map(len, rows)) if len(rows) > 1 else ()
        return Answers.of(given, gold, TASKS[task].metrics, data, over="median", parts=sizes)

    def predictions(self, run: GlueRun) -> dict[str, np.ndarray] | None:
        """Return test logits float32[N, C] by "TASK/split"; None: not on file, or of other test rows."""
        wanted = self._test_sets(run.task)
        path = self._path(run, ".predictions")
        if wanted and not path.is_file():
            return None
        found = finetuning.read_tensors(path) if wanted else {}
        if any(name not in found or found[name]["rows"] != self._digest(*name.split("/")) for name in wanted):
            return None
        return {name: found[name]["logits"].numpy() for name in wanted}

    def unfinished(self, runs: Sequence[GlueRun]) -> list[GlueRun]:
        """Return `runs` without figures, and a task's best without predictions, if they are asked for."""
        found = {run: self.result(run) for run in runs}
        left = {run for run, result in found.items() if result is None}
        for task in dict.fromkeys(run.task for run in runs):
            predicted = [run for run in runs if run.task == task]
            if left.isdisjoint(predicted):
                predicted = [choose({run: result for run in predicted if (result := found[run])})[2]]
            if self.options.predict:
                left |= {run for run in predicted if self.predictions(run) is None}
        return [run for run in runs if run in left]

    @contextmanager
    def claimed(self, run: GlueRun) -> Iterator[None]:
        """Hold a run, so that no other process computes it; FolderTakenError: one does."""
        make_folder(self.folder)
        with folder_lock(self.folder, part=self._path(run, "").name):
            yield

    def compute(self, run: GlueRun, heading: str) -> None:
        """Fine-tune or continue, and write the predictions, if they are asked for, then the figures."""
        begun = time.monotonic()
        count = len(self._sets(run.task)["train"])
        print(f"{heading}{run.name}: {count:,} examples", file=sys.stderr, flush=True)
        model, content = self._train(run)
        if self.options.predict and (tests := self._test_sets(run.task)):
            predictions = {}
            for name, examples in tests.items():
                rows = self._encode(name.split("/")[0], examples)
                logits = finetuning.logits_of(model, rows, self.options.token_budget, self.options.precision)
                digest = self._digest(*name.split("/"))
                predictions[name] = {"rows": digest, "logits": torch.from_numpy(logits)}
            finetuning.write_tensors(self._path(run, ".predictions"), predictions)
        finetuning.write_result(self._path(run, ".json"), content)
        what = f"{content['best']['value']:.2f} after epoch {content['best']['epoch']:g}"
        print(f"  {run.name}: {what} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)

    def _train(self, run: GlueRun) -> tuple[finetuning.Classifier, dict[str, Any]]:
        """Return (the model, at its best epoch if it predicts; the run's figures to write)."""
        sets, options = self._sets(run.task), self.options
        dev = [split for split in TASKS[run.task].dev_splits() if split in sets]
        outputs = len(TASKS[run.task].labels) or finetuning.REGRESSION
        training = finetuning.FineTuning(
            finetuning.build_classifier(self.source, outputs, Recipe.dropout, run.seed),
            sets["train"],
            Recipe(run.lr, run.batch_size, options.epochs, run.warmup),
            run.seed,
            lambda logits: _dev_scores(
                run.task, {split: (logits(sets[split]), sets[split].known_targets) for split in dev}
            ),
            finetuning.Execution(
                options.precision,
                options.token_budget,
                finetuning.checkpoint_of(self._path(run, ".json")),
                self.stop_code,
                keep_weights=options.predict,
            ),
        )
        outcome = training.run()
        return training.model, {
            "settings": self._settings(run),
            **outcome.figures(),
            "cut": {split: encoded.cut for split, encoded in sets.items() if encoded.cut},
        }

    def _sets(self, task: str) -> dict[str, Encoded]:
        """Return training and dev sets, tokenised; they are kept until another task is asked for."""
        if self._encoded[0] != task:
            splits = self.data[task].splits.items()
            encoded = {name: self._encode(task, rows) for name, rows in splits if name[:4] != "test"}
            self._encoded = task, encoded
        return self._encoded[1]

    def _test_sets(self, task: str) -> dict[str, LabelledExamples]:
        names = [task, "AX"] if task == "MNLI" and "AX" in self.data else [task]
        splits = ((name, *split) for name in names for split in self.data[name].splits.items())
        return {f"{name}/{split}": rows for name, split, rows in splits if split.startswith("test")}

    def _encode(self, task: str, rows: LabelledExamples) -> Encoded:
        # fairseq trains STS-B on scores of 0 to 1 (examples/roberta/preprocess_GLUE_tasks.sh).
        targets = rows.targets / 5 if rows.targets is not None and not TASKS[task].labels else rows.targets
        return encode_examples(self.source, rows.first, rows.second, targets, MAX_LENGTH)

    def _settings(self, run: GlueRun) -> dict[str, Any]:
        options = self.options
        splits = sorted(split for split in self.data[run.task].splits if not split.startswith("test"))
        return asdict(run) | {
            "epochs": options.epochs,
            "max_length": MAX_LENGTH,
            "precision": options.precision,
            "model": self.source.fingerprint,
            "data": {split: self._digest(run.task, split) for split in splits},
        }

    def _path(self, run: GlueRun, ending: str) -> Path:
        digest = finetuning.settings_digest(self._settings(run))
        return self.folder / f"{run.task}-lr{run.lr:g}-batch{run.batch_size}-seed{run.seed}-{digest}{ending}"

    def _digest(self, task: str, split: str) -> str:
        if (task, split) not in self._digests:
            rows = self.data[task].splits[split]
            self._digests[task, split] = examples_digest(rows.first, rows.second, rows.targets)
        return self._digests[task, split]


def _dev_scores(
    name: str, by_dev_split: dict[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[float, dict[str, float], np.ndarray]:
    """Return the deciding figure, all scores (x 100) and the answers, splits end to end, from dev logits."""
    task = TASKS[name]
    answers, by_split = [], {}
    for split, (logits, targets) in by_dev_split.items():
        answers.append(logits.argmax(1) if task.labels else logits[:, 0])
        by_split[split] = scores_of(task.metrics, answers[-1], targets)
    together = np.concatenate(answers)
    if name != "MNLI":
        scores = by_split["dev"]
        return scores[task.headline], scores, together
    halves = {split.removeprefix("dev_"): scores["accuracy"] for split, scores in by_split.items()}
    mean = sum(halves.values()) / len(halves)
    return mean, {"accuracy": mean, **halves}, together
