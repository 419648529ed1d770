"""Adapting published types to a text by one command: what it makes, compares, continues and refuses."""

import json
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import call
from forked_python import ForkedPython, run_python
from model_folders import LONGEST, save_bert, save_guest
from published_folders import write_published
from run_helpers import ROOT, TINY, environment, outputs_of, records, wait_for, write_corpus
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sts_layout import write_layout
from transformers import AutoModelForMaskedLM, AutoTokenizer, T5Config

from finetune.encoders.models import open_model
from finetune.judge.heldout import RetrievalTest
from finetune.judge.scores import METRICS
from finetune.nanobeir import FOLDER, read
from finetune.search import search
from pretrain.benchmarks.own_sets import OwnSet
from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.commands import adapt as adapt_module
from pretrain.commands.adapt import _require_a_batch, check_start, main
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.common.folder_lock import folder_lock
from pretrain.config.recipe import load_config
from pretrain.data.tokenizer import load_tokenizer
from pretrain.export.sums import WEIGHTS

FLAGS = {key: value for key, value in TINY.items() if not key.startswith("model.")} | {
    "train.steps": 6,
    "evaluate.every": 3,
    "data.prepare.heldout": 0.1,
    "config": "adapt_micro",
}


def test_fewer_pairs_than_a_batch_are_refused_before_they_are_prepared(tmp_path):
    (tmp_path / "rows").write_text("{}\n" * 100)
    settings = load_config("adapt_micro", {"train.global_batch": "64"})
    _require_a_batch([{"source": str(tmp_path / "rows")}], settings)
    with pytest.raises(
        UserError, match=r"100 pairs .* batches of 128: add text, or --train\.global_batch 80"
    ):
        _require_a_batch(
            [{"source": str(tmp_path / "rows")}], load_config("adapt_micro", {"train.global_batch": "128"})
        )


def test_texts_are_as_long_as_the_start_reads_them(tmp_path):
    """As its positions allow, and where a sentence-transformers model says less, as that says."""
    bert = save_bert(tmp_path / "bert")
    assert check_start(str(bert)) == LONGEST
    for longest in (16, LONGEST):
        assert check_start(str(save_guest(bert, tmp_path / str(longest), "mean", longest=longest))) == longest


@pytest.mark.parametrize(
    ("config", "said"),
    [(None, "Unrecognized model"), ('{"model_type": "bert"}', "no tokenizer"), ("{", "config.json")],
)
def test_a_start_that_cannot_be_read_is_named_before_anything_is_done(tmp_path, config, said):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=rf"^--init {re.escape(str(tmp_path))}: .*{said}"):
        check_start(str(tmp_path))


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The command without its judge, preparation and training: what each of them is given, in order."""
    given = {}
    judge = SimpleNamespace(rows=lambda: "rows", table=lambda rows: [f"table of {rows}"])
    (tmp_path / "rest").write_text("{}\n" * 500)

    def note(name, result=None):
        return lambda *words, **keys: given.update({name: (words, keys)}) or result

    monkeypatch.setattr(adapt_module, "choose_accelerator", lambda: None)
    monkeypatch.setattr(adapt_module, "_judge", note("judge", judge))
    monkeypatch.setattr(adapt_module, "prepare", note("prepare", "the data"))
    monkeypatch.setattr(adapt_module, "train", note("train"))
    monkeypatch.setattr(adapt_module, "_report", note("report"))
    rest = [{"source": str(tmp_path / "rest")}]
    monkeypatch.setattr("finetune.judge.heldout.training_sources", lambda sources, folder: rest)
    return given


def test_what_is_held_out_is_neither_prepared_nor_trained_on(given, tmp_path, capsys, monkeypatch):
    bert, out = str(save_bert(tmp_path / "bert")), tmp_path / "run"
    keys = {"train.global_batch": "64", "train.warmup_steps": "2", "train.steps": "6"}
    monkeypatch.delenv("CLEAR_DATA", raising=False)

    def command(**more):
        given.clear()
        return main(init=bert, text="a.txt,b.txt", out=out, config="adapt_micro", **(keys | more))

    assert command() == 0 and list(given) == ["judge", "prepare", "train", "report"]
    (init, place, prepared, pooling, eval_data), _ = given["judge"]
    assert (init, place, pooling, eval_data) == (bert, out, "mean", "")
    assert [source.source for source in prepared.sources] == ["a.txt", "b.txt"]
    _, one = given["prepare"]
    assert (one["out"], one["sources"]) == (out / "data", [{"source": str(tmp_path / "rest")}])
    assert one["tokenizer"] == bert and one["max_length"] == LONGEST
    words, one = given["train"]
    assert words == ("adapt_micro",) and "eval_data" not in one and one.items() >= keys.items()
    assert (one["init"], one["data"], one["run"], one["resume"]) == (bert, "the data", out, "auto")
    judge, *rest = given["report"][0]
    assert judge.rows() == "rows" and rest == [bert, "a.txt,b.txt", out, ""]
    said = capsys.readouterr().out
    headings = [
        *("== 1. hold a test out of a.txt,b.txt", "table of rows"),
        f"== 2. prepare the rest with the tokenizer of {bert}",
        *(f"== 3. train {bert} on it", "== 4. judge"),
    ]
    assert [line for line in said.splitlines() if line] == headings
    # shorter texts, if that is asked for
    command(**{"data.prepare.max_length": "9"})
    assert given["prepare"][1]["max_length"] == 9
    # the folder of evaluation data, of the flag or the environment: the flag's reaches the training
    there = str(write_layout(tmp_path / "there"))
    assert command(eval_data=there) == 0
    assert given["judge"][0][-1] == given["train"][1]["eval_data"] == given["report"][0][-1] == there
    monkeypatch.setenv("CLEAR_DATA", there)
    assert command() == 0 and "eval_data" not in given["train"][1]
    assert given["judge"][0][-1] == given["report"][0][-1] == there
    monkeypatch.delenv("CLEAR_DATA")
    # of a run that is done the report alone is made again; of one that has more steps to do it goes on
    (out / "report").mkdir(parents=True)
    (out / "config.yaml").touch()
    for steps, trained in ((6, False), (5, True)):
        (out / "report" / "summary.json").write_text(json.dumps({"steps": steps}))
        assert command() == 0 and ("train" in given) is trained and "report" in given
    monkeypatch.setattr(adapt_module, "train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert command() == 130 and "report" not in given
    assert f"{out} is stopped. The same command continues" in capsys.readouterr().err
    # two at once would make the same files: the second one is refused
    given.clear()
    with folder_lock(out, part="judge"), pytest.raises(UserError, match="is being written by process"):
        command()
    assert not given
    # a folder of something else stays as it is
    (out / "config.yaml").rename(out / "mine.yaml")
    with pytest.raises(UserError, match="holds something else; choose another --out"):
        command()
    assert not given
    for key in ("data", "run", "checkpoint.resume", "data.prepare.tokenizer"):
        with pytest.raises(UserError, match=f"--{key} follows from --init, --text and --out: leave it out"):
            command(**{key: "x"})


@pytest.mark.parametrize(
    "own,pooling,opened",
    [(True, "mean", ""), (False, "mean", "mean"), (False, "words", ""), (False, "cls", "cls")],
)
def test_the_start_is_judged_by_its_own_pooling_or_that_of_training(
    own, pooling, opened, tmp_path, monkeypatch, capsys
):
    counts = {"documents": 1200, "heldout": 120, "training": 1000, "copies": 80, "neighbours": 0}
    found, shown = {"heading": 1500, "title": 2}, [["what is it", "It is a text."]]
    test, general = RetrievalTest({}, "heading", found, counts, shown), OwnSet("G", "", ["a"], ["b"], None)
    asked, judged = [], []
    monkeypatch.setattr("finetune.judge.heldout.make_test", lambda *given: asked.append(given) or test)
    monkeypatch.setattr("finetune.judge.choice.general_test", {"DATA": general}.get)
    monkeypatch.setattr("finetune.judge.choice.fingerprint", lambda *given: given)
    monkeypatch.setattr("finetune.encoders.models.open_model", lambda *given, **more: (given, more))
    monkeypatch.setattr("pretrain.export.sentence_transformers.read_modules", lambda source: own or None)

    def judge(*given):
        return SimpleNamespace(given=given, begin=lambda: judged.append(given))

    monkeypatch.setattr("finetune.judge.choice.Judge", judge)
    prepare = load_config("adapt_micro", {"data.prepare.sources": "a.txt"}).data.prepare
    found = adapt_module._judge("INIT", tmp_path, prepare, pooling, "DATA")
    assert judged == [found.given]
    given, folder, open_start, *rest = found.given
    assert (given, folder, rest) == (test, tmp_path / "judge", [general, ("INIT", opened)])
    assert open_start() == (("INIT", opened), {"quiet": True})
    assert asked == [(prepare.sources, tmp_path / "judge", prepare.seed, prepare.unit == "record")]
    said = capsys.readouterr().out
    assert said.splitlines() == [
        "  documents  1,200: 120 held out, 1,000 to train on, 80 in neither (they repeat held-out ones)",
        "  pairs      a heading and its section (held-out queries by kind: heading 1,500, title 2)",
        "             what is it -> It is a text.",
        "  general    G, 1 pairs: what must not be forgotten",
    ]
    test.counts["neighbours"] = 7
    monkeypatch.setattr("finetune.judge.heldout.make_test", lambda *_: replace(test, part=2000))
    adapt_module._judge("INIT", tmp_path, prepare, pooling, "DATA")
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "fewer than 50 documents: split into parts of 2,000 characters or more" in first
    assert second.endswith("ones), 7 left out beside held-out ones")


@pytest.mark.parametrize("kept", ["start", "adapted"])
def test_a_report_is_made_once_of_the_weights_that_are_there(kept, tmp_path, monkeypatch, capsys):
    out, decided = tmp_path / "my run", []
    (out / "report").mkdir(parents=True)
    for name in ("export", "best"):
        (out / name).mkdir()
        (out / name / WEIGHTS).write_text(name)

    def decide(start, trained, best, open_model):
        decided.append((start, trained, best))
        return {"kept": kept, "weights": [sha256_of(folder / WEIGHTS) for folder in (trained, best)]}

    monkeypatch.setattr("finetune.judge.choice.report_lines", lambda report: ["the table", "best/ is it"])
    for changed, times in ((None, 1), (None, 1), ("export", 2), ("best", 3)):
        if changed:
            (out / changed / WEIGHTS).write_text("trained again")
        adapt_module._report(SimpleNamespace(decide=decide), "INIT", "my text", out, "")
        assert decided == [("INIT", out / "export", out / "best")] * times
        said = capsys.readouterr().out
        assert json.loads((out / "report" / "judge.json").read_text())["kept"] == kept
    note = f"  note       what follows uses best/, which is the start; {out}/export was trained"
    lines = [line for line in said.splitlines() if line]
    assert lines == [
        *["the table", *([note] if kept == "start" else [])],
        f'  use it     SentenceTransformer("{out}/best"), or AutoModel.from_pretrained',
        f"""  search     clearly search INIT --beside '{out}' --text 'my text' --split "what to look for\"""",
        f"  evaluate   clearly sts '{out}' --eval-data DIR",
        "best/ is it",
    ]


def words(init: Path, text: Path, out: Path, **flags: object) -> list[str]:
    given = {"init": init, "text": text, "out": out} | FLAGS | flags
    return [
        "-m",
        "pretrain.commands.adapt",
        *(f"--{key.replace('__', '.')}={value}" for key, value in given.items()),
    ]


def adapt(init: Path, text: Path, out: Path, expect: int = 0, **flags: object) -> str:
    done = run_python(words(init, text, out, **flags), environment(), ROOT, timeout=480)
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "mine.txt", documents=120)


def report_of(run: Path) -> dict:
    return json.loads((run / "report" / "judge.json").read_text())


@pytest.mark.full
def test_a_published_type_from_its_folder_to_an_export(tmp_path, text):
    start, out = write_published("mmbert", tmp_path / "model"), tmp_path / "run"
    output = adapt(start, text, out)
    # what was prepared, with which tokenizer
    own, extended = load_tokenizer(start), load_tokenizer(out / "data")
    assert len(extended) == len(own) + 1
    # what to type next
    (line,) = (line for line in output.splitlines() if line.startswith("  search "))
    assert (
        line == f'  search     clearly search {start} --beside {out} --text {text} --split "what to look for"'
    )
    call(search, *shlex.split(line)[3:])
    # the report: what is printed is what is in its file, and what is kept is better or the start
    report, rows = report_of(out), report_of(out)["rows"]
    assert (
        report["kind"] == "neighbour"
        and f"held-out queries by kind: neighbour {report['found']['neighbour']}" in output
    )
    assert output.count("held-out documents among") == 2 and set(rows) >= {"start", "adapted"}
    for row in rows.values():
        for metric in METRICS:
            figure = row["figures"][metric]
            cell = f"{figure['value']:.1f} [{max(figure['low'], 0):.1f}, {min(figure['high'], 100):.1f}]"
            assert cell in output and figure["low"] <= figure["value"] <= figure["high"]
    # without STS-B dev a share is chosen by the test of the package
    assert report["general"] == "general test (docstrings)" and set(report["similarity"]) > {"0", "0.5", "1"}
    assert "  general    general test (docstrings), 8" in output
    assert f"  general test (docstrings), start: {report['similarity']['0']['value']:.1f}" in output
    kept = report["kept"]
    assert re.search(
        r"  evaluate .*\n\n  best/ is " + ("the start" if kept == "start" else "(what|an av)"), output
    )
    assert (kept == "start") == (
        rows[report["chosen"]["row"]]["less"].get("start", {}).get("verdict") != "better"
    )
    # nothing of the test is in the data
    tested = {text for half in ("dev", "test") for text in read(out / "judge" / FOLDER / half).documents}
    trained = (out / "judge" / "train-0.jsonl").read_text()
    assert len(tested) > 20 and not [text for text in tested if json.dumps(text)[1:-1] in trained]
    # the export: transformers reads its tokenizer and weights, and text goes there and back
    tokenizer, model = (kind.from_pretrained(out / "best") for kind in (AutoTokenizer, AutoModelForMaskedLM))
    assert tokenizer.get_vocab() == own.get_vocab() and model.config.vocab_size == len(tokenizer)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    sentence = text.read_text().split("\n")[0]
    ids = tokenizer(sentence)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == sentence
    adapted = open_model(out)
    assert adapted.pooling == adapted.trained_pooling == "mean"  # the recipe's, as the start names none
    assert torch.isfinite(torch.from_numpy(adapted.encode([sentence]))).all()


@pytest.mark.full
def test_a_published_encoder_without_a_head_is_compared_by_its_own_vectors(tmp_path, text):
    bert, said = write_published("bert", tmp_path / "bert"), {"default_prompt_name": "query"}
    said["prompts"] = {"query": "find : ", "document": "read : "}
    guest = save_guest(bert, tmp_path / "guest", "mean", Normalize(), **said)
    pooling = guest / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    run, evaluator = tmp_path / "run", StsEvaluator(write_layout(tmp_path / "benchmarks"))
    output = adapt(guest, text, run, eval_data=tmp_path / "benchmarks", data__prepare__max_length=32)
    assert "corrupted" not in output and "mean pooling, normalised" in output
    report = report_of(run)
    assert report["general"] == "STS-B dev" and "  STS-B dev, start: " in output
    for alpha, folder in (("0", guest), ("1", run / "export")):
        encode = SentenceTransformer(str(folder), device="cpu").encode
        score = evaluator.evaluate(encode, ["STS-B-dev"])["STS-B-dev"]["spearman_all"]
        # ranks of near ties hang on rounding
        assert report["similarity"][alpha]["value"] == pytest.approx(score, abs=0.5)
    if report["kept"] == "start":  # it is what best/ gives
        texts = ["The old river carries the stone.", "A quiet garden"]
        vectors = [SentenceTransformer(str(one), device="cpu").encode(texts) for one in (guest, run / "best")]
        assert np.abs(vectors[0] - vectors[1]).max() < 1e-5


@pytest.mark.full
def test_an_interrupted_one_continues_by_the_same_command_and_a_finished_one_shows_its_table(tmp_path, text):
    start, out = write_published("xlm-roberta", tmp_path / "model"), tmp_path / "run"
    # so many that the signal comes before they are done
    flags = {"checkpoint__every": 1, "train__steps": 24, "evaluate__every": 12}
    process = ForkedPython(words(start, text, out, **flags), environment(), ROOT)
    wait_for(lambda: any("loss" in row for row in records(out)), [process])
    process.send_signal(signal.SIGINT)
    (said,) = outputs_of([process], 240)
    assert process.returncode == 130 and "The same command continues" in said, said[-3000:]
    done = max(row["step"] for row in records(out))
    output = adapt(start, text, out, **flags)
    assert done < 24 and re.search(rf"resumed from \S+ at step {done}", output)
    assert [row["step"] for row in records(out) if "loss" in row] == list(range(1, 25))
    shown = output.split("== 4.")[1]
    before = (out / "metrics.jsonl").read_bytes()
    again = adapt(start, text, out, **flags)
    assert (
        "  general test (docstrings), start: " in again
        and "== 3." not in again
        and again.split("== 4.")[1] == re.sub(r"(?m)^  (judge|by-product) +\d/\d: .*\n", "", shown)
    )
    assert (out / "metrics.jsonl").read_bytes() == before
    # the folder is of this text
    other = write_corpus(tmp_path / "other.txt", documents=20)
    assert str(out / "judge") in adapt(start, other, out, expect=2)


@pytest.mark.full
@pytest.mark.parametrize(
    "what,needle",
    [
        ("t5", "model type 't5' is not supported; choose one of bert, roberta"),
        ("none", "there is no folder"),
        ("tokenizer", "has no tokenizer.json"),
        ("taken", "holds something else; choose another --out"),
        ("twice", "train.steps is given two values, train.steps='6' and steps='100'"),
        ("flag", "--data follows from --init, --text"),
        ("benchmarks", "has no SentEval/STS/STSBenchmark; leave it out"),
    ],
)
def test_what_cannot_be_adapted_is_one_error_before_anything_is_written(tmp_path, text, what, needle):
    start, out, flags = tmp_path / "model", tmp_path / "run", {}
    if what == "t5":
        T5Config().save_pretrained(start)
    elif what != "none":
        write_published("bert", start)
    if what == "tokenizer":
        (start / "tokenizer.json").unlink()
        (start / "tokenizer_config.json").unlink()
    if what == "taken":
        out.mkdir()
        (out / "mine.txt").write_text("keep")
    if what == "twice":
        flags["steps"] = 100
    if what == "flag":
        flags["data"] = tmp_path
    if what == "benchmarks":
        flags["eval_data"] = tmp_path
    output = adapt(start, text, out, expect=2, **flags)
    assert needle in output and output.count("error: ") == 1 and "Traceback" not in output
    assert not out.exists() or [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["adapt_base", "adapt_micro"])
def test_recipes_train_on_pairs_near_the_start(name):
    config = load_config(name, {"init": "some/encoder"})
    assert config.train.warmup_steps == 0.1 * config.train.steps and config.data.prepare.unit == "record"
    assert config.objective.name == "simcse+retain" and config.objective.guide == "some/encoder"


def test_the_best_is_chosen_by_the_named_score():
    from pretrain.step.progress import selection_score

    scores = {"stsb-dev": 70.0, "heldout_mlm_loss": 3.0, "partner_loss": 0.1}
    assert selection_score(scores, by="heldout_mlm_loss") == ("heldout_mlm_loss", -3.0)
    assert selection_score(scores, from_random=True, by="partner_loss") == ("partner_loss", -0.1)
    assert selection_score({"partner_loss": 0.1}, by="heldout_mlm_loss") == ("partner_loss", -0.1)
