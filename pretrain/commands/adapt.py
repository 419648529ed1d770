"""Adapt an encoder to your own text, and hear whether it is better for it: than its start, and than BM25.

    clearly adapt --init MODEL --text my.txt --out runs/mine
    clearly adapt --init runs/base --text my.txt --out runs/mine --config adapt_micro
    clearly adapt --init MODEL --text 'my/*.md' --out runs/mine --eval-data DIR --train.steps 2000

MODEL is a BERT, RoBERTa, XLM-R, ModernBERT or mmBERT, as a folder or a name of the hub, or a run or an export
of ours. First a test is made of documents that nothing is trained on, in OUT/judge: pairs of texts that
belong together by the text's own structure. The rest is prepared with MODEL's tokenizer, in OUT/data, and
trained on. OUT/best is what was trained, or an average of it with the start, or the start, whichever the
test says. OUT is a run like any other: the same command continues one that was interrupted, and of one that
is finished shows the report again.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from augment.core.errors import CannotLoad, shortened
from augment.core.pretrained import pretrained, require_source, require_weights
from pretrain.api import overrides_of, prepare, train
from pretrain.common import cli
from pretrain.common.environment import choose_accelerator
from pretrain.common.errors import UserError, naming
from pretrain.common.files import make_folder, remove_if_empty, replace_durably, to_json
from pretrain.common.folder_lock import folder_lock
from pretrain.common.processes import take_ends_for_interrupt
from pretrain.common.run_folder import export_of, is_complete
from pretrain.config import recipe as recipes
from pretrain.config.data import DataConfig
from pretrain.config.run import Config

if TYPE_CHECKING:
    from finetune.judge.choice import Judge

_OURS = (
    *("data", "data.folder", "run", "folder", "resume", "checkpoint.resume", "model.init"),
    *("data.prepare.sources", "data.prepare.tokenizer"),
)
"""Keys of a run that follow from the flags of this command."""
JUDGE, REPORT = "judge", "judge.json"
"""Where a run has the test, and in its report/ what came of it."""


def main(
    *, init: str, text: str, out: Path, config: str = "adapt_base", eval_data: str = "", **overrides: str
) -> int:
    """Continue the training of an encoder on your own text, and judge it on documents held out of that.

    Args:
        init: the encoder to start from: a folder or hub name of Hugging Face, a run or an export.
        text: text, markdown, rst, jsonl, csv or parquet files, comma-separated; a folder, or a glob.
        out: the run folder.
        config: YAML recipe; adapt_micro is for encoders of some 10 million parameters.
        eval_data: folder of the benchmarks, for STS-B dev (default: CLEAR_DATA); none: a test of docstrings.
        overrides: any key of the recipe, dotted (`--train.steps 2000`).
    """
    if taken := sorted(set(_OURS) & set(overrides)):
        raise UserError(f"--{taken[0]} follows from --init, --text and --out: leave it out")
    start = {"init": init} | ({"eval_data": eval_data} if eval_data else {})
    overrides_of(overrides | start)  # what `train` would refuse, before the text is prepared
    longest = check_start(init)
    choose_accelerator()  # children inherit it
    of_recipe = recipes.load_config(config, dict(overrides)).data.prepare.max_length
    overrides.setdefault("data.prepare.max_length", str(min(longest, of_recipe)))
    settings = recipes.load_config(
        config, overrides | start | {"data.prepare.sources": text, "data.prepare.tokenizer": export_of(init)}
    )
    from finetune.judge.heldout import training_sources
    from pretrain.start.encoder import adopt_interface
    from pretrain.start.evaluation import require_sts, sets_of

    adopt_interface(settings)
    # training would refuse these too, after the text is prepared
    require_sts(settings.evaluate.sts)
    sets_of(settings.evaluate)
    ours = ("data", "config.yaml", JUDGE)
    if out.is_dir() and any(out.glob("[!.]*")) and not any((out / name).exists() for name in ours):
        raise UserError(f"{out} holds something else; choose another --out")
    eval_data = eval_data or os.environ.get("CLEAR_DATA", "")
    with _alone_in(out):
        try:
            _step(1, f"hold a test out of {text}")
            judge = _judge(init, out, settings.data.prepare, settings.model.pooling, eval_data)
            print("\n".join(judge.table(judge.rows())), flush=True)
            _step(2, f"prepare the rest with the tokenizer of {init}")
            rest = {"sources": training_sources(settings.data.prepare.sources, out / JUDGE)}
            _require_a_batch(rest["sources"], settings)
            prepared = settings.data.prepare.model_dump(exclude_unset=True) | rest
            data = prepare(out=out / "data", **prepared)
            if not is_complete(out, settings.train.steps):
                _step(3, f"train {init} on it")
                train(config, data=data, run=out, resume="auto", **(overrides | start))
        except KeyboardInterrupt:
            print(f"\n{out} is stopped. The same command continues", file=sys.stderr)
            return 130
        _step(4, "judge")
        _report(judge, init, text, out, eval_data)
    return 0


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Let no other call adapt into a folder at once; of a new folder whose call is refused nothing stays."""
    make_folder(out)
    try:
        with folder_lock(out, part=JUDGE):
            yield
    finally:
        remove_if_empty(out)


def _require_a_batch(sources: list[dict], settings: Config) -> None:
    """Refuse fewer pairs than a batch takes, before they are prepared, which leaves some out."""
    lanes, batch = settings.data.lanes, settings.train.global_batch
    pairs = sum(Path(source["source"]).read_bytes().count(b"\n") for source in sources)
    if settings.data.prepare.unit == "record" and (usable := int(0.8 * pairs)) < batch:
        smaller = f", or --train.global_batch {usable // lanes * lanes}" if usable >= lanes else ""
        raise UserError(f"{pairs:,} pairs to train on are too few for batches of {batch}: add text{smaller}")


def check_start(init: str) -> int:
    """Return how many tokens of a text an encoder takes."""
    with naming(f"--init {init}", CannotLoad, UserError):
        location = export_of(init)
        require_source(location)  # before torch is loaded, which takes seconds
        from transformers import AutoConfig

        from pretrain.data.tokenizer import adopt_tokenizer
        from pretrain.export.sentence_transformers import read_modules
        from pretrain.model.architectures import family_of

        require_weights(location)
        config = pretrained(AutoConfig, location)
        longest = family_of(config.model_type).usable_positions(config)
        adopt_tokenizer(location, longest)
        modules = read_modules(location)
    own = None if modules is None else modules.interface.max_length
    return min(longest, own or longest)


def _judge(init: str, out: Path, prepare: DataConfig, pooling: str, eval_data: str) -> Judge:
    """Make the test, or find it, say what it is, and score BM25 and the start."""
    from finetune.encoders.models import open_model
    from finetune.judge.choice import Judge, fingerprint, general_test
    from finetune.judge.heldout import make_test
    from finetune.judge.parts import FEW, GAP
    from pretrain.export.sentence_transformers import read_modules
    from pretrain.model.pooling import WORDS
    from pretrain.prepare.sources.structure import KINDS

    test = make_test(prepare.sources, out / JUDGE, prepare.seed, prepare.unit == "record")
    counts = test.counts
    if test.part:
        print(
            f"  text       fewer than {FEW} documents: split into parts of {test.part:,} characters or more, "
            f"at sections or paragraphs, which count as documents; {GAP} characters or a section beside "
            "held-out parts are left out"
        )
    print(
        f"  documents  {counts['documents']:,}: {counts['heldout']:,} held out, {counts['training']:,} to "
        f"train on, {counts['copies']:,} in neither (they repeat held-out ones)"
        + (f", {counts['neighbours']:,} left out beside held-out ones" if counts["neighbours"] else "")
        + f"\n  pairs      {KINDS[test.kind]} (held-out queries by kind: "
        + ", ".join(f"{kind} {count:,}" for kind, count in test.found.items())
        + ")"
    )
    for query, passage in test.shown:
        print(f"             {shortened(query, 60)} -> {shortened(passage, 100)}")
    general = general_test(eval_data)
    print(f"  general    {general.name}, {len(general.first):,} pairs: what must not be forgotten")
    own = read_modules(export_of(init)) is not None  # it brings its pooling
    pooling = "" if own or pooling == WORDS else pooling
    judge = Judge(
        test,
        out / JUDGE,
        lambda: open_model(init, pooling, quiet=True),
        general,
        fingerprint(export_of(init), pooling),
    )
    judge.begin()
    return judge


def _report(judge: Judge, init: str, text: str, out: Path, eval_data: str) -> None:
    """Judge what was trained, unless that is done, and print what came of it and what to type next."""
    from finetune.encoders.models import open_model
    from finetune.judge.choice import read_report, report_lines
    from finetune.judge.scores import START

    trained, best, path = out / "export", out / "best", out / "report" / REPORT
    report = read_report(path, trained, best)
    if report is None:
        report = judge.decide(export_of(init), trained, best, partial(open_model, quiet=True))
        replace_durably(path, to_json(report))
    *lines, last = report_lines(report)
    start, run, texts = map(shlex.quote, map(str, (init, out, text)))
    if report["kept"] == START:
        lines += ["", f"  note       what follows uses best/, which is the start; {trained} was trained"]
    print(
        "\n".join(lines)
        + f'\n\n  use it     SentenceTransformer("{out}/best"), or AutoModel.from_pretrained\n'
        f'  search     clearly search {start} --beside {run} --text {texts} --split "what to look for"\n'
        f"  evaluate   clearly sts {run} --eval-data {shlex.quote(eval_data or 'DIR')}\n\n{last}"
    )


def _step(number: int, text: str) -> None:
    print(f"\n== {number}. {text}", flush=True)


if __name__ == "__main__":
    take_ends_for_interrupt()
    cli.run(
        main, keys=lambda: [flag for flag in recipes.flags() if flag[0] not in _OURS], outlives_readers=True
    )
