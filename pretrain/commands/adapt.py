"""Adapt an encoder to your own text: prepare it, continue training on it, and compare with the start.

    clearly adapt --init MODEL --text my.txt --out runs/mine
    clearly adapt --init runs/base --text my.txt --out runs/mine --config adapt_micro
    clearly adapt --init MODEL --text 'my/*.txt' --out runs/mine --eval-data DIR --train.steps 2000

MODEL is a BERT, RoBERTa, XLM-R, ModernBERT or mmBERT, as a folder or a name of the hub, or a run or an export
of ours. The text is prepared with its tokenizer, in OUT/data, and a part of the documents is held out. Masked
language modelling and the contrastive loss are trained on the rest, from its weights. OUT is a run like any
other: the same command continues one that was interrupted, and of one that is finished shows the table again.
"""

import json
import math
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained, require_source, require_weights
from pretrain.api import load, overrides_of, prepare, train
from pretrain.common import cli
from pretrain.common.environment import choose_accelerator
from pretrain.common.errors import UserError
from pretrain.common.run_folder import export_of
from pretrain.config import recipe as recipes

_OURS = (
    *("data", "data.folder", "run", "folder", "resume", "checkpoint.resume", "model.init"),
    *("data.prepare.sources", "data.prepare.tokenizer"),
)
"""Keys of a run that follow from the flags of this command."""


def main(
    *,
    init: str,
    text: str,
    out: Path,
    config: str = "adapt_base",
    eval_data: str = "",
    **overrides: str,
) -> int:
    """Continue the training of an encoder on your own text, and compare it with its start.

    Args:
        init: the encoder to start from: a folder or hub name of Hugging Face, a run or an export.
        text: text, jsonl, csv or parquet files, comma-separated; a folder, or a glob.
        out: the run folder.
        config: YAML recipe; adapt_micro is for encoders of some 10 million parameters.
        eval_data: folder of the benchmarks, for STS (default: CLEAR_DATA).
        overrides: any key of the recipe, dotted (`--train.steps 2000`).

    Returns: the exit status.
    """
    if taken := sorted(set(_OURS) & set(overrides)):
        raise UserError(f"--{taken[0]} follows from --init, --text and --out: leave it out")
    start = {"init": init} | ({"eval_data": eval_data} if eval_data else {})
    overrides_of(overrides | start)  # what `train` would refuse, before the text is prepared
    choose_accelerator()  # children inherit it
    longest = check_start(init)
    of_recipe = recipes.load_config(config, dict(overrides)).data.prepare.max_length
    overrides.setdefault("data.prepare.max_length", str(min(longest, of_recipe)))
    settings = recipes.load_config(
        config,
        overrides | start | {"data.prepare.sources": text, "data.prepare.tokenizer": export_of(init)},
    )
    from pretrain.start.encoder import adopt_interface
    from pretrain.start.evaluation import require_sts

    adopt_interface(settings)
    require_sts(settings.evaluate.sts)  # training would refuse it too, after the text is prepared
    ours = ("data", "config.yaml")
    if out.is_dir() and any(out.glob("[!.]*")) and not any((out / name).exists() for name in ours):
        raise UserError(f"{out} holds something else; choose another --out")
    try:
        _step(1, f"prepare {text} with the tokenizer of {init}")
        data = prepare(out=out / "data", **settings.data.prepare.model_dump(exclude_unset=True))
        finished = out / "report" / "summary.json"
        if not finished.is_file() or json.loads(finished.read_text("utf-8"))["steps"] < settings.train.steps:
            _step(2, f"train {init} on it")
            train(config, data=data, run=out, resume="auto", **(overrides | start))
    except KeyboardInterrupt:
        print(f"\n{out} is stopped. The same command continues", file=sys.stderr)
        return 130
    _step(3, "compare with the start")
    report(init, text, out, settings.model.pooling, eval_data or os.environ.get("CLEAR_DATA", ""))
    return 0


def check_start(init: str) -> int:
    """Return how many tokens of a text an encoder takes.

    Raises:
        UserError: nothing there, a model or tokenizer of a type that is not supported, or no safe weights.
    """
    from transformers import AutoConfig

    from pretrain.data.tokenizer import adopt_tokenizer
    from pretrain.export.sentence_transformers import read_modules
    from pretrain.model.architectures import family_of

    try:
        location = export_of(init)
        require_source(location)
        require_weights(location)
        config = pretrained(AutoConfig, location)
        longest = family_of(config.model_type).usable_positions(config)
        adopt_tokenizer(location, longest)
        modules = read_modules(location)
    except (CannotLoad, UserError) as error:
        raise UserError(f"--init {init}: {error}") from None
    own = None if modules is None else modules.interface.max_length
    return min(longest, own or longest)


def report(init: str, text: str, out: Path, pooling: str, eval_data: str) -> None:
    """Print start and adapted encoder side by side, and what to type next.

    eval_data: folder of the benchmarks; "": none.
    """
    from pretrain.start.summary import LABELS

    summary = json.loads((out / "report" / "summary.json").read_text("utf-8"))
    manifest = json.loads((out / "data" / "manifest.json").read_text("utf-8"))
    print(f"  {'':34}{'start':>10}{'adapted':>10}   difference")
    random = dict.fromkeys(summary.get("random_at_start", ()), math.nan)
    for label, start, adapted in heldout_rows({**summary["start"], **random}, summary["best"]):
        before, difference = (f"{start:.2f}", f"{adapted - start:+.2f}")
        if math.isnan(start):
            before, difference = "random", "none: the start has no head for it"
        print(f"  {label:34}{before:>10}{adapted:>10.2f}   {difference}")
    sts = _sts(init, out, pooling, eval_data) if eval_data else {}
    for task, (first, last) in sts.items():
        label = f"STS, {task} (Spearman x 100)"
        print(f"  {label:34}{first.value:>10.2f}{last.value:>10.2f}   {last.text}")
    if not sts:
        print("  similarity: not measured (--eval-data names a folder with SentEval/STS)")
    heldout = manifest["splits"]["heldout"]["sequences"]
    print(
        f"\n  adapted: step {summary['best_step']:,} of {summary['steps']:,}, the best by "
        f"{LABELS[summary['best_by']]}; {heldout:,} held-out sequences"
    )
    run, texts, data = map(shlex.quote, map(str, (out, text, out / "data")))
    print(
        f'\n  use it     SentenceTransformer("{out}/best"), or AutoModel.from_pretrained\n'
        f'  search     clearly search {run} --text {texts} --split "what to look for"\n'
        f"  evaluate   python -m finetune.sts {run} --eval-data {shlex.quote(eval_data or 'DIR')}\n"
        f"  train on   clearly train --config simcse_micro --init {run} --data {data}"
    )


def heldout_rows(start: dict[str, float], adapted: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return (label, start, adapted) of what was evaluated on the held-out text; shares in %.

    A start that was random is not a number.
    """
    from pretrain.start.summary import LABELS

    rows = []
    for name, label in LABELS.items():
        if name in start and name in adapted and name != "stsb-dev":
            scale = 1
            if name == "partner_found":
                label, scale = f"{label} ({adapted['partner_among']:,.0f} candidates, %)", 100
            rows.append((label, scale * start[name], scale * adapted[name]))
    return rows


def _sts(init: str, out: Path, pooling: str, eval_data: str) -> dict[str, Any]:
    """Return task -> what start and adapted encoder score, with an interval of the difference.

    The mean alone where all seven tasks are there; nothing where none is.
    """
    from finetune.compare.examples import AVERAGE, example_differences, sts_evaluation
    from pretrain.benchmarks.sts_scores import StsEvaluator
    from pretrain.export.sentence_transformers import read_modules

    evaluator = StsEvaluator(eval_data)
    if not evaluator.available():
        return {}
    own = read_modules(export_of(init)) is not None  # it brings its pooling
    models = {"start": load(init, pooling="" if own else pooling), "adapted": load(out)}
    evaluations = {name: {"sts": sts_evaluation(model, evaluator)} for name, model in models.items()}
    found = example_differences(evaluations)["sts"]
    tasks: Iterable[str] = [AVERAGE] if AVERAGE in found else found
    return {task: (found[task]["start"], found[task]["adapted"]) for task in tasks}


def _step(number: int, text: str) -> None:
    print(f"\n== {number}. {text}", flush=True)


if __name__ == "__main__":
    cli.run(main, keys=lambda: [flag for flag in recipes.flags() if flag[0] not in _OURS])
