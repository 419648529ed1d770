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
from augment.core.pretrained import has_tokenizer, pretrained, require_source, require_weights
from pretrain.api import load, overrides_of, prepare, train
from pretrain.common import cli
from pretrain.common.environment import choose_accelerator
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, to_json
from pretrain.common.run_folder import export_of
from pretrain.config import recipe as recipes
from pretrain.config.data import Source
from pretrain.config.run import Config

RECORD = "adapt.json"
"""What an output folder is of: its start, its text and how that is prepared."""
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
    given = {"init": init} | ({"eval_data": eval_data} if eval_data else {})
    overrides_of(overrides | given)  # what `train` would refuse, before the text is prepared
    choose_accelerator()  # children inherit it
    longest = check_start(init)
    overrides.setdefault("data.prepare.max_length", _at_most(longest, config, overrides))
    settings = recipes.load_config(
        config,
        overrides | given | {"data.prepare.sources": text, "data.prepare.tokenizer": export_of(init)},
    )
    from pretrain.start.encoder import adopt_interface

    adopt_interface(settings)
    _require_benchmarks(settings)
    claim(out, settings)
    try:
        _step(1, f"prepare {text} with the tokenizer of {init}")
        data = prepare(out=out / "data", **settings.data.prepare.model_dump(exclude_unset=True))
        if _steps_done(out) < settings.train.steps:
            _step(2, f"train {init} on it")
            train(config, data=data, run=out, resume="auto", **(overrides | given))
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
        if not has_tokenizer(location):
            raise CannotLoad(
                "the folder has no tokenizer.json. Put the one that belongs to the model into it: texts are "
                "read with the encoder's own tokenizer"
            )
        adopt_tokenizer(location, longest)
        modules = read_modules(location)
    except (CannotLoad, UserError) as error:
        raise UserError(f"--init {init}: {error}") from None
    own = None if modules is None else modules.interface.max_length
    return min(longest, own or longest)


def _require_benchmarks(settings: Config) -> None:
    """Refuse a named folder that has no benchmarks, as training would after the text is prepared."""
    if settings.evaluate.sts is not None:
        from finetune.sts.scores import StsEvaluator
        from pretrain.start.evaluation import require_sts

        require_sts(settings, StsEvaluator(settings.evaluate.sts))


def claim(out: Path, settings: Config) -> None:
    """Write down what an output folder is of.

    Raises:
        UserError: it is of something else, or holds something else.
    """
    path = out / RECORD
    wanted = {"init": settings.model.init, **settings.data.prepare.model_dump(mode="json")}
    if path.is_file():
        held = json.loads(path.read_text("utf-8"))
        differing = [key for key in wanted if held.get(key) != wanted[key]]
        if not differing:
            return
        if (out / "data" / "manifest.json").is_file() or (out / "checkpoints").exists():
            key = differing[0]
            before, now = (_shown(settings.get(key)) for settings in (held, wanted))
            raise UserError(
                f"{out} holds an adaptation whose {key} is {before}, and now it is {now}: choose another "
                "--out"
            )
        # the first command failed before anything was made
    elif out.is_dir() and any(
        not path.name.startswith(".") for path in out.iterdir()
    ):  # as a kill leaves them
        raise UserError(f"{out} holds something else; choose another --out")
    make_folder(out)
    replace_durably(path, to_json(wanted))


def _shown(value: object) -> str:
    """Return a setting for an error; of sources what is not as it is by default."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return repr(value)
    return repr([Source(**one).model_dump(mode="json", exclude_defaults=True) for one in value])


def _at_most(longest: int, config: str, overrides: dict[str, str]) -> str:
    """Return the recipe's length of a sequence, or what the encoder takes where that is less."""
    return str(min(longest, recipes.load_config(config, dict(overrides)).data.prepare.max_length))


def _steps_done(out: Path) -> int:
    path = out / "report" / "summary.json"
    return json.loads(path.read_text("utf-8"))["steps"] if path.is_file() else 0


def report(init: str, text: str, out: Path, pooling: str, eval_data: str) -> None:
    """Print start and adapted encoder side by side, and what to type next; write report/adapt.json.

    eval_data: folder of the benchmarks; "": none.
    """
    summary = json.loads((out / "report" / "summary.json").read_text("utf-8"))
    random = summary.get("random_at_start", ())
    rows = heldout_rows({**summary["start"], **dict.fromkeys(random, math.nan)}, summary["best"])
    sts = _sts(init, out, pooling, eval_data) if eval_data else {}
    for task, (start, adapted) in sts.items():
        difference = adapted.difference
        rows.append((f"STS, {task} (Spearman x 100)", start.value, adapted.value, difference))
    lines = [f"  {'':34}{'start':>10}{'adapted':>10}   difference"]
    for label, start, adapted, interval in rows:
        if math.isnan(start):
            lines.append(f"  {label:34}{'random':>10}{adapted:>10.2f}   none: the start has no head for it")
            continue
        lines.append(f"  {label:34}{start:>10.2f}{adapted:>10.2f}   {_difference(adapted - start, interval)}")
    if not sts:
        lines.append("  similarity: not measured (--eval-data names a folder with SentEval/STS)")
    print("\n".join(lines))
    content = {
        label: {"adapted": adapted}
        | ({} if math.isnan(start) else {"start": start, "difference": adapted - start})
        | ({} if interval is None else {"low": interval.low, "high": interval.high})
        for label, start, adapted, interval in rows
    }
    replace_durably(out / "report" / "adapt.json", to_json(content))
    print("\n".join(["", *_notes(out, summary), "", *_next(out, text, eval_data)]))


def heldout_rows(start: dict[str, float], adapted: dict[str, float]) -> list[tuple[str, float, float, Any]]:
    """Return (label, start, adapted, no interval) of what was evaluated on the held-out text; shares in %.

    A start that was random is not a number.
    """
    from pretrain.start.summary import LABELS

    rows: list[tuple[str, float, float, Any]] = []
    for name, label in LABELS.items():
        if name in start and name in adapted and name != "stsb-dev":
            scale = 1
            if name == "partner_found":
                label, scale = f"{label} ({adapted['partner_among']:,.0f} candidates, %)", 100
            rows.append((label, scale * start[name], scale * adapted[name], None))
    return rows


def _sts(init: str, out: Path, pooling: str, eval_data: str) -> dict[str, Any]:
    """Return task -> what start and adapted encoder score, with an interval of the difference.

    The mean alone where all seven tasks are there; nothing where none is.
    """
    from finetune.compare.differences import AVERAGE, model_pairs, sts_differences
    from finetune.sts.scores import StsEvaluator
    from pretrain.export.sentence_transformers import read_modules

    evaluator = StsEvaluator(eval_data)
    if not evaluator.available():
        return {}
    own = read_modules(export_of(init)) is not None  # it brings its pooling
    models = {"start": load(init, pooling="" if own else pooling), "adapted": load(out)}
    found = sts_differences({name: model_pairs(model, evaluator) for name, model in models.items()})
    tasks: Iterable[str] = [AVERAGE] if AVERAGE in found["start"] else found["start"]
    return {task: (found["start"][task], found["adapted"][task]) for task in tasks}


def _difference(difference: float, interval: Any) -> str:
    from pretrain.telemetry.intervals import interval_text

    if interval is None:
        return f"{difference:+.2f}"
    return interval_text(interval.mean, interval.low, interval.high)


def _notes(out: Path, summary: dict[str, Any]) -> list[str]:
    from pretrain.start.summary import LABELS

    manifest = json.loads((out / "data" / "manifest.json").read_text("utf-8"))
    held = manifest["splits"]["heldout"]["sequences"]
    best, steps = summary["best_step"], summary["steps"]
    by = LABELS[summary["best_by"]]
    return [f"  adapted: step {best:,} of {steps:,}, the best by {by}; {held:,} held-out sequences"]


def _next(out: Path, text: str, eval_data: str) -> list[str]:
    run, texts, data, benchmarks = map(shlex.quote, map(str, (out, text, out / "data", eval_data or "DIR")))
    return [
        f'  use it     SentenceTransformer("{out}/best"), or AutoModel.from_pretrained',
        f'  search     clearly search {run} --text {texts} --split "what to look for"',
        f"  evaluate   python -m finetune.sts {run} --eval-data {benchmarks}",
        f"  train on   clearly train --config simcse_micro --init {run} --data {data}",
    ]


def _step(number: int, text: str) -> None:
    print(f"\n== {number}. {text}", flush=True)


def _keys() -> list[tuple[str, str, str, str]]:
    return [flag for flag in recipes.flags() if flag[0] not in _OURS]


if __name__ == "__main__":
    cli.run(main, keys=_keys)
