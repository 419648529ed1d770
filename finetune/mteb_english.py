"""Evaluate an encoder on MTEB(eng, v2) by the library `mteb` itself (the extra `mteb`).

    clearly mteb-english MODEL --tasks STSBenchmark,Banking77Classification

Tasks, data, protocols and figures are the library's; its own files of results lie in OUT/mteb, whence it
continues after an interruption. Sentences are encoded by this project: packed, with the model's prompts as
the library puts them, and from kept vectors if CLEAR_VECTORS names a folder. The library fetches each
task's data from the hub when it is first used.
"""

import hashlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.encoders.source import reach_hub
from finetune.flags import EncodingFlags, Model, Out
from finetune.results import Evaluation, folder_for, folder_name, run_and_write
from pretrain.benchmarks.files import known_name
from pretrain.common import cli
from pretrain.common.errors import UserError

if TYPE_CHECKING:
    from mteb import AbsTask

BENCHMARK = "MTEB(eng, v2)"
OWNER = "clear"
"""In the name by which the library's files call the model: it wants OWNER/NAME."""


def library() -> Any:
    try:
        import mteb
    except ImportError as error:
        raise UserError(f"MTEB needs a library ({error}): pip install 'sentence-clear[mteb]'") from None
    return mteb


def choose(names: Sequence[str]) -> "list[AbsTask]":
    """Return the benchmark's tasks of these names; all of them without names."""
    tasks = {task.metadata.name: task for task in library().get_benchmark(BENCHMARK).tasks}
    chosen = [known_name(name, tasks, f"task of {BENCHMARK}") for name in names] or list(tasks)
    return [tasks[name] for name in dict.fromkeys(chosen)]


def mteb_encoder(model: EmbeddingModel) -> Any:
    """Return a model as the library takes one, which encodes by `model`; its revision is of these weights."""
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder, get_prompt_name

    # quiet for those of sentence-transformers that are none of the library's names
    with warnings.catch_warnings(action="ignore"):
        validated, _ = AbsEncoder.validate_task_to_prompt_name(dict(model.prompts), False)
    prompts = validated or {}
    by_type = {"query": model.encode_query, "document": model.encode_document}

    class MtebEncoder(AbsEncoder):
        """Encode by this project; similarities are cosines, as in sentence-transformers."""

        def __init__(self) -> None:
            about = f"{model.identity} {model.pooling} {model.precision}"
            about += f" {prompts}" if any(prompts.values()) else ""
            self.mteb_model_meta = ModelMeta.create_empty(
                overwrites={
                    "name": f"{OWNER}/{folder_name(model.name)}-{model.pooling.replace(' ', '-')}",
                    "revision": hashlib.sha256(about.encode()).hexdigest()[:12],
                }
            )

        def encode(self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any) -> np.ndarray:
            """Return vectors float32[N, d] of a loader's texts; a task's prompt precedes its type's."""
            texts = [text for batch in inputs for text in batch["text"]]
            if (name := get_prompt_name(prompts, task_metadata, prompt_type)) is not None:
                return model.encode(texts, prompts[name])
            return by_type.get(prompt_type, model.encode)(texts)

    return MtebEncoder()


def load(task: "AbsTask") -> None:
    if task.data_loaded:
        return
    name, place = task.metadata.name, str(task.metadata.dataset.get("path", ""))
    of_library = type(task).load_data.__module__.startswith("mteb.")
    if of_library and not Path(place).exists():
        reach_hub(f"the data of MTEB's {name} ({place})", "leave the task out")
    try:
        task.load_data()
    except Exception as error:  # of datasets, of the hub, of the task: for the same few causes
        said = (str(error) or repr(error)).splitlines()[0]
        what = f"cannot load the data of MTEB's {name} ({place})"
        raise UserError(f"{what}: {said}. Fetch them where there is network, or leave it out") from error


def evaluate(model: EmbeddingModel, tasks: "Sequence[AbsTask]", folder: Path) -> Evaluation:
    """Evaluate tasks; what `folder` has of the same weights, pooling and precision is not done again."""
    mteb = library()
    cache, encoder = mteb.ResultCache(folder), mteb_encoder(model)
    evaluation = Evaluation.of("mteb_english", model, f"{BENCHMARK} by mteb {mteb.__version__}")
    for task in tasks:
        name = task.metadata.name
        if not cache.get_task_result_path(name, encoder.mteb_model_meta).is_file():
            load(task)
        found = mteb.evaluate(
            encoder, task, cache=cache, co2_tracker=False, show_progress_bar=False
        ).task_results[0]
        headline = task.metadata.main_score
        scores = {headline: 100 * float(found.get_score())}
        evaluation.add(name, headline, scores, kind=task.metadata.type, scores_by_split=found.scores)
        print(f"{name}: {headline} {scores[headline]:.2f}", file=sys.stderr, flush=True)
    return evaluation


def add_average(result: Evaluation) -> None:
    """Add the mean over tasks, and the mean of the means over kinds of tasks, if all tasks are there."""
    names = [task.metadata.name for task in choose(())]
    if not all(name in result.tasks for name in names):
        return
    kinds: dict[str, list[float]] = {}
    for name in names:
        kinds.setdefault(result.tasks[name].details["kind"], []).append(result.tasks[name].value)
    over_tasks = float(np.mean([result.tasks[name].value for name in names]))
    over_kinds = float(np.mean([np.mean(values) for values in kinds.values()]))
    result.add("average", "mean", {"mean": over_tasks, "mean over kinds": over_kinds})


def main(model: Model, *, tasks: cli.Names = (), out: Out = "", encoding: EncodingFlags) -> int:
    """Evaluate on MTEB(eng, v2) by the library mteb, which fetches the data from the hub; resumable.

    Args:
        tasks: names of its tasks by commas, as mteb has them; without it, all 41.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the library's data loaders fork
    chosen = choose(tasks)
    opened = open_model(model, encoding.pooling, precision=encoding.precision)
    folder = folder_for(opened, out) / "mteb"
    return run_and_write(opened, out, lambda opened: evaluate(opened, chosen, folder), add_average)


if __name__ == "__main__":
    cli.run(main)
