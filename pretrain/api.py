"""Prepare, train, evaluate and encode from Python, in a notebook for instance.

    from pretrain.api import load, prepare, train

    data = prepare(["corpus.txt"], out="data/mine", vocabulary=8192)
    run = train("clear_micro", data=data, run="runs/mine", train={"steps": 100})
    run.evaluate("sts", eval_data="benchmarks")["results"]
    vectors = load(run).encode(["A storm at sea.", "The ship waits."])

Preparing, training and evaluating are the commands of the same name, each in a process of its own: training
wants one process for each core, signals and threads that a session with other work cannot give it, and its
memory is free when it is done. The process's lines are printed as they come. Ctrl-C (in a notebook:
interrupt) reaches it as it would in a terminal, so that a run saves first. Opening a model, encoding and
exporting happen in the caller's process.

Every mistake is one `UserError` with the command's own message, in which `--run`, say, is the keyword `run`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from augment.core.own_code import allow
from pretrain.common.errors import UserError
from pretrain.common.processes import run_to_end
from pretrain.common.run_folder import export_of, is_complete, read_summary, require_run
from pretrain.config.data import data_config
from pretrain.config.recipe import DEFAULT_RECIPE, SHORT_FLAGS, load_config
from pretrain.config.validation import leaves
from pretrain.data.manifest import read_manifest
from pretrain.telemetry.metrics_file import read_metrics

if TYPE_CHECKING:
    from finetune.encoders.models import EmbeddingModel

Place = str | os.PathLike[str]
"""A file or folder; relative ones start where the session does."""

SUITES = ("quick", "mteb-eng", "all")
"""Suites of several evaluations: `clearly eval --suite NAME`."""


@dataclass(frozen=True)
class Run:
    """A run folder: `train` returns one, and `Run("runs/mine")` is one of an earlier session.

    Wherever a folder is expected, `load` or a recipe's `init` for instance, a run can stand.

    Args:
        folder: with the config.yaml that a training writes when it starts.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder).expanduser())
        require_run(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """What a finished run says of itself: its scores at the start, the best and the last step, its steps,
        tokens and seconds, and the sha256 of its weights (report/summary.json).
        """
        if (summary := read_summary(self.folder)) is None:
            raise UserError(f"{self.folder} is not finished; train it again with resume='auto'")
        return summary

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl: of training with `loss`, of evaluations with `evaluation`."""
        return list(read_metrics(self.folder / "metrics.jsonl"))

    def evaluate(
        self, name: str, eval_data: Place | None = None, out: Place | None = None, **flags: Any
    ) -> dict[str, Any]:
        """Evaluate the run's best weights (best/, else export/) and return the figures.

        Args:
            name: an evaluation, `clearly NAME` with `_` for `-` (docs/evaluation.md), or one of `SUITES`.
            eval_data: folder of the benchmarks; None: the one that CLEAR_DATA names.
            out: folder for the figures; None: RUN/report, where `clearly report RUN` finds them.
            flags: of `clearly NAME`, with `_` for `-`: `pooling="mean"`, `tasks=["STS-B"]`.

        Returns:
            Of `sts` {"model": its name, "results": {pooling: {task: {"spearman_all": Spearman x 100, ...}}}}.
            Of others what the command writes as JSON (`finetune.results`): {"tasks": {task: {"metric": name,
            "value": figure, "scores": {...}}}, "complete": whether it is comparable with published figures,
            "notes": why not, ...}. Of a suite {"units": {name of an evaluation: {"tasks": as above}}, ...}.

        Raises:
            UserError: an unknown evaluation or flag, missing data, no export yet, or a failed command.
            KeyboardInterrupt: after Ctrl-C, when the evaluation has stopped.
        """
        if name not in SUITES and find_spec(f"finetune.{name}") is None:
            raise UserError(f"there is no evaluation {name!r}: docs/evaluation.md lists them")
        export_of(str(self.folder))  # a run without weights is refused before the process starts
        folder = Path(out or self.folder / "report")
        given = flags | {"out": folder}
        if name in SUITES:
            given["suite"] = name
        if eval_data is not None:
            given["eval_data"] = eval_data
        module = "evaluate" if name in SUITES else name
        written_as = "eval.json" if name in SUITES else f"{name}*.json"
        before = _stamps(folder, written_as)
        words = [str(self.folder), *(f"--{key}={_as_flag(value)}" for key, value in given.items())]
        run_to_end(f"finetune.{module}", words, "The same call starts it again, or continues it")
        after = _stamps(folder, written_as)
        # a suite may have been done before; of others the figures are those that this call wrote
        written = [path for path in after if name in SUITES or before.get(path) != after[path]]
        if not written:
            raise UserError(f"{name} of {self.folder} wrote no figures; what it printed says why")
        found = [json.loads(path.read_text("utf-8")) for path in sorted(written, key=after.__getitem__)]
        if name != "sts":
            return found[-1]
        results = {}
        for one in found:  # of all tasks but the average, with what is told of their subsets
            tasks = {task: of["scores"] | of["details"] for task, of in one["tasks"].items()}
            results[one["pooling"]] = {task: scores for task, scores in tasks.items() if "subsets" in scores}
        return {"model": found[-1]["model"], "results": results}

    def export(self, out: str | Path | None = None, step: int | str = "latest") -> Path:
        """Write a checkpoint's encoder as a folder that transformers and sentence-transformers load.

        Args:
            out: the folder to write and return, in which an earlier export is replaced; None: RUN/export.
            step: "latest", "best", or the number of a checkpoint's step.

        Raises:
            UserError: there is no such checkpoint, it is damaged, or `out` holds something else.
        """
        from pretrain.export.folder import export  # imports torch and transformers

        return export(self.folder, out, step)


def prepare(
    sources: Place | Mapping[str, Any] | Sequence[Place | Mapping[str, Any]],
    out: Place,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    **keys: Any,
) -> Path:
    """Turn raw text into a tokenizer and shuffled, de-duplicated shards: `clearly prepare`.

    A folder with the finished result of the same settings is left as it is, an unfinished one continued.

    Args:
        sources: a text, jsonl, csv, tsv or parquet file, a folder or a glob of them, "embedded" or
            "hub:OWNER/NAME"; or a list of them; each with @WEIGHT behind it if that is not 1, or as a mapping
            (`pretrain.config.data.Source`): {"source": "a.jsonl", "text_key": "body"}.
        out: the folder to write, which is returned for `train`.
        workers: tasks at a time; None: one a core.
        overwrite: replace data that `out` holds of other settings.
        keys: of `pretrain.config.data.DataConfig`: `vocabulary`, `unit`, `max_length`, `tokenizer` ...

    Raises:
        UserError: an unknown key (the nearest is named), a wrong value, a source that is not there, a folder
            with data of other settings, or a failed task.
        KeyboardInterrupt: after Ctrl-C; the same call continues.
    """
    several = [sources] if isinstance(sources, str | os.PathLike | Mapping) else sources
    listed = [dict(one) if isinstance(one, Mapping) else os.fspath(one) for one in several]
    config = data_config({"sources": listed, **_plain(keys)})
    words = [f"--out={os.fspath(out)}", f"--overwrite={_as_flag(overwrite)}"]
    words += [] if workers is None else [f"--workers={workers}"]
    with recipe_file(config.model_dump(mode="json", exclude_unset=True)) as recipe:
        run_to_end("pretrain.prepare", [f"--config={recipe}", *words], "Start it again: it continues")
    return Path(out)


def train(
    recipe: Place = DEFAULT_RECIPE,
    *,
    data: Place | None = None,
    run: Place | None = None,
    resume: str = "never",
    **changes: Any,
) -> Run:
    """Train a run to its last step, as `clearly train` does with the same recipe and changes, and return it.

    Args:
        recipe: name of one of ours (a file of configs/, as "clear_micro"), or path of a YAML file.
        data: prepared data; None: the recipe's, which is prepared on first use.
        run: the run folder; None: the recipe's.
        resume: "never" refuses a run folder that holds checkpoints; "auto" continues from the newest good
            one, or starts: the same call again finishes a run that was stopped; or a checkpoint's folder.
        changes: of the recipe, as sections (`train={"steps": 100}`), as dotted keys
            (`**{"train.steps": 100}`), or by the command's short flags (`aug="del-span"`, `init=MODEL`,
            `steps=100`).

    Raises:
        UserError: an unknown recipe or key (the nearest is named), a wrong value, two different values of one
            key, data that is not there, a run folder that is taken, a run that something else stopped before
            its last step, or one that failed.
        KeyboardInterrupt: after Ctrl-C; the run has saved, and `resume="auto"` continues it. After a second
            Ctrl-C it has not waited, and continues from the newest checkpoint.
    """
    overrides = overrides_of(changes) | {"checkpoint.resume": resume}
    if data is not None:
        read_manifest(Path(data))
        overrides["data.folder"] = os.fspath(data)
    if run is not None:
        overrides["folder"] = os.fspath(run)
    allow(map(str, overrides.values()))
    config = load_config(Path(recipe), overrides)
    if config.model.init is not None:
        from pretrain.start.encoder import adopt_interface  # imports torch

        adopt_interface(config)
    # not what has a default: a dropout that was not given is the checkpoint's
    with recipe_file(config.model_dump(mode="json", exclude_unset=True)) as file:
        try:
            run_to_end("pretrain.main", [f"--config={file}"], _CONTINUE)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{config.run_folder} is stopped: train(..., resume='auto')") from None
    trained = Run(config.run_folder)
    if not is_complete(trained.folder, config.train.steps):
        raise UserError(f"{trained.folder} stopped before its last step. {_CONTINUE}")
    return trained


def load(
    model: Place,
    *,
    pooling: str = "",
    token_budget: int = 16384,
    batch_size: int = 64,
    max_length: int | None = None,
    precision: str = "fp32",
) -> EmbeddingModel:
    """Open an encoder as the evaluations do.

        load("runs/mine").encode(sentences)     # N strings -> float32[N, hidden size], in their order

    Sentences may be in any order and repeated: each distinct one is encoded once, sorted by length, without
    padding, on the GPU if there is one. Vectors are not normalised. `encode_poolings` gives several poolings
    at once. What the encoder is shows when it is printed. `encode` raises a UserError for anything but a list
    of strings, and for a vector that is not finite.

    Args:
        model: a `Run` or its folder (then its best/, else its export/), an export, a folder or hub name of
            Hugging Face or sentence-transformers, or "file.py:function".
        pooling: cls, mean, first-last, embedding-last or last-two, or words of a model that was trained with
            it; "": the one that the model was trained with.
        token_budget: most tokens of a pass; bounds memory, and moves results by rounding only.
        batch_size: sentences of a pass, of models that cannot run packed.
        max_length: tokens that sentences are cut to; None: as many as the model takes.
        precision: "fp32", or "bf16" for the encoder's products.

    Raises:
        UserError: nothing there to load, a run without an export yet, an unknown pooling or precision.
    """
    from finetune.encoders.models import open_model  # numpy: not for who only trains

    allow([os.fspath(model)])
    return open_model(os.fspath(model), pooling, token_budget, batch_size, max_length, precision=precision)


_CONTINUE = "Start it again (in Python: with resume='auto'); it continues from the newest checkpoint"


def overrides_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes as dotted keys or short flags; a section is taken apart.

    >>> overrides_of({"train": {"lr": 0.1}, "model.layers": 2, "aug": "none"})
    {'train.lr': 0.1, 'model.layers': 2, 'aug': 'none'}
    """
    flat: dict[str, Any] = {}
    given: dict[str, tuple[str, Any]] = {}  # key -> the name that it was given by, and its value
    for name, change in changes.items():
        parts = leaves({name: change}) if isinstance(change, Mapping) and change else [(name, change)]
        for part, value in parts:
            if value == {}:
                continue
            key = SHORT_FLAGS.get(part, part)
            other_name, other = given.setdefault(key, (part, value))
            if other != value:
                raise UserError(f"{key} is given two values, {other_name}={other!r} and {part}={value!r}")
            flat[part] = value
    return _plain(flat)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a recipe has them: a path is a text."""
    plain = {key: os.fspath(value) for key, value in values.items() if isinstance(value, os.PathLike)}
    return {**values, **plain}


@contextmanager
def recipe_file(tree: dict[str, Any]) -> Iterator[Path]:
    """Write settings as YAML for a command; words of a command line could not tell None from "none"."""
    with tempfile.TemporaryDirectory(prefix="recipe-") as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), "utf-8")
        yield path


def _as_flag(value: Any) -> str:
    """Return a value as a command line has it.

    >>> _as_flag(True), _as_flag(["STS-B", "SICK-R"]), _as_flag(0.5)
    ('true', 'STS-B,SICK-R', '0.5')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _stamps(folder: Path, pattern: str) -> dict[Path, int]:
    """Return when each file of an evaluation's figures was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob(pattern)}
