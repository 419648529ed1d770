"""`clearly mine`: what sentence-transformers mines by the same export, and records that a training reads."""

import json
import random

import pytest
import yaml
from commands import call
from datasets import Dataset
from export_helpers import WORDS, make_run
from forked_python import run_python
from model_folders import make_tokenizer, save_bert, save_run
from run_helpers import ROOT, command, environment, finish, start
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from pretrain.commands.mine import MiningOptions, Vectors, main, mine
from pretrain.common.errors import UserError
from pretrain.export.folder import export

ANIMALS, DOES, PLACES = ("dog", "cat", "bird", "horse"), ("runs", "sleeps", "eats"), ("garden", "house")
PAIRS = [
    (f"a {animal} {does} in the {place}", f"in the {place} there {does} some {animal}")
    for animal in ANIMALS
    for does in DOES
    for place in PLACES
]
PAIRS.append((PAIRS[0][0], "an animal moves"))  # a text with two positives


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer([text for pair in PAIRS for text in pair])
    return save_run(save_bert(folder / "bert", tokenizer), folder / "run", "mean")


@pytest.fixture
def pairs_file(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"anchor": a, "positive": b}) + "\n" for a, b in PAIRS))
    return file


def rows_of(folder):
    return [json.loads(line) for line in (folder / "triples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_negatives": 3, "relative_margin": 0.02},
        {"num_negatives": 2, "range_min": 1, "range_max": 9, "max_score": 0.99, "min_score": 0.2},
        {"num_negatives": 2, "range_max": 9, "absolute_margin": 0.01, "sampling_strategy": "random"},
    ],
)
def test_the_triples_are_those_of_the_library(run, pairs_file, tmp_path, options):
    call(main, model=run, pairs=pairs_file, out=tmp_path / "mined", unmatched="drop", seed=5, **options)
    random.seed(5)
    theirs = mine_hard_negatives(
        Dataset.from_dict({"text": [a for a, _ in PAIRS], "positive": [b for _, b in PAIRS]}),
        SentenceTransformer(str(run / "export"), device="cpu"),
        verbose=False,
        **{"num_negatives": 1} | options,
    ).to_list()

    def by_pair(row):  # the library puts the positives of a text together
        return PAIRS.index((row["text"], row["positive"]))

    assert theirs and rows_of(tmp_path / "mined") == sorted(theirs, key=by_pair)


def test_an_export_that_was_trained_with_prompts_is_asked_with_them(tmp_path):
    make_run(tmp_path, prompts={"anchor": "under the roof: ", "positive": "nobody listens: "})
    folder = export(tmp_path)
    pairs = [(" ".join(WORDS[n : n + 4]), " ".join(WORDS[n + 2 : n + 5])) for n in range(14)]
    rows = [{"text": a, "positive": b} for a, b in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    call(main, folder, pairs=tmp_path / "pairs.jsonl", out=tmp_path / "mined", num_negatives=2)
    model = SentenceTransformer(str(folder), device="cpu")
    theirs = mine_hard_negatives(Dataset.from_list(rows), model, num_negatives=2, verbose=False)
    assert rows_of(tmp_path / "mined") == theirs.to_list()


def test_a_second_mining_encodes_nothing_and_writes_the_same(run, pairs_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CLEAR_VECTORS", str(tmp_path / "vectors"))
    words = {"model": run, "pairs": pairs_file, "out": tmp_path / "mined"}
    call(main, **words, num_negatives=2)
    first = (tmp_path / "mined" / "triples.jsonl").read_bytes()
    capsys.readouterr()
    call(main, **words, num_negatives=2)
    said = capsys.readouterr()
    assert said.err.count(" 0 encoded in") == 2
    assert (tmp_path / "mined" / "triples.jsonl").read_bytes() == first
    about = yaml.safe_load((tmp_path / "mined" / "mined.yaml").read_text())
    assert about["counts"] == {
        "pairs": 25, "triples": 50, "pairs_with_fewer": 0, "pairs_without": 0
    }  # fmt: skip
    assert f"50 triples of 25 pairs: {tmp_path}/mined/triples.jsonl" in said.out


def test_a_text_is_never_its_own_negative(run):
    """Every text is a positive, too, as in paraphrases given in both directions."""
    both = PAIRS + [(b, a) for a, b in PAIRS]
    model = SentenceTransformer(str(run / "export"), device="cpu")
    options = MiningOptions(num_negatives=3)
    triples = mine(
        both, ["a fish swims"], Vectors(lambda texts, _: model.encode(list(texts)), "", ""), options
    )
    assert len(triples) == 3 * len(both)
    allowed = {pair: {b for a, b in both if a == pair[0]} | {pair[0]} for pair in both}
    assert not [t for t in triples if t["negative"] in allowed[t["text"], t["positive"]]]
    assert all(t["scores"][1] <= 1 for t in triples)


def negatives_of(run, pairs, **options):
    """Text -> its negatives among all positives."""
    model = SentenceTransformer(str(run / "export"), device="cpu")
    vectors = Vectors(lambda texts, _: model.encode(list(texts)), "", "")
    found = {text: set() for text, _ in pairs}
    for row in mine(pairs, [], vectors, MiningOptions(**options)):
        found[row["text"]].add(row["negative"])
    return found


def test_an_answer_to_a_question_with_the_same_answer_is_no_negative(run):
    """(q, a), (q, b), (r, b): a may answer r, too; what r has besides, c, may answer q."""
    (q, a), (r, b), (_, c) = PAIRS[:3]
    pairs = [*PAIRS[:2], *PAIRS[3:-1], (q, b), (r, c)]
    found = negatives_of(run, pairs, num_negatives=20, range_max=24)
    assert all(len(found[text]) == 20 and found[text].isdisjoint({a, b, c}) for text in (q, r))
    nearest = negatives_of(run, pairs)
    assert all(len(found) == 1 for found in nearest.values())  # another negative takes its place


def test_generic_answers_exclude_nothing(run):
    """Every question of a small FAQ has "yes", too: by it alone no two of them mean the same."""
    faq = PAIRS[:-1]
    generic = [(text, "yes") for text, _ in faq]
    found = negatives_of(run, [*faq, *generic], num_negatives=23, range_max=25)
    answers = {answer for _, answer in faq}
    assert all(found[text] == answers - {answer} for text, answer in faq)


def test_negatives_that_are_given_and_further_texts_are_candidates(run, tmp_path):
    rows = [{"sent0": a, "sent1": b, "hard_neg": f"no {b}"} for a, b in PAIRS]
    Dataset.from_list(rows).to_parquet(tmp_path / "pairs.parquet")
    (tmp_path / "more.txt").write_text("a fish swims\nthe sun shines\n")
    call(
        main, run, pairs=tmp_path / "pairs.parquet", out=tmp_path / "mined", corpus=tmp_path / "more.txt",
        num_negatives=50, range_max=60,
    )  # fmt: skip
    found = {row["negative"] for row in rows_of(tmp_path / "mined") if "negative" in row}
    assert found >= {"a fish swims", "the sun shines", *(row["hard_neg"] for row in rows)}


def test_pairs_that_get_none_stay_or_go(run, pairs_file, tmp_path, capsys):
    words = {"model": run, "pairs": pairs_file, "out": tmp_path / "mined", "relative_margin": 0.08}
    call(main, **words)
    said, kept = capsys.readouterr().out, rows_of(tmp_path / "mined")
    without = [row for row in kept if "negative" not in row]
    assert 0 < len(without) < len(kept) == len(PAIRS)
    assert f"pairs_without: {len(without)}\n" in said
    call(main, **words, unmatched="drop")
    assert rows_of(tmp_path / "mined") == [row for row in kept if "negative" in row]


@pytest.mark.parametrize(
    ("file", "content", "flags", "said"),
    [
        ("p.csv", "text,positiv\na,b\n", {}, "did you mean 'positive'"),
        ("p.csv", "text\na\n", {}, r"p.csv, line 2: the record has no positive.*--positive-key"),
        (
            "p.jsonl",
            '{"text": "a", "positive": "b"}\n{"text": " ", "positive": "b"}\n',
            {},
            "line 2.* no text",
        ),
        ("p.jsonl", '{"text": "a", "positive": "b", "label": 0}\n', {}, "line 1: the record has a label"),
        ("p.jsonl", "\n\n", {}, "there is no pair in .*p.jsonl"),
        ("p.tsv", "q\ta\nx\ty\n", {"text_key": "q", "positive_key": "a"}, "1 candidates are too few"),
        ("p.csv", "text,positive\na,b\nc,d\n", {"max_score": -1}, "none of 2 pairs got a negative; loosen"),
        ("p.csv", "text,positive\na,b\nc,d\n", {"range_min": 1}, "too few"),
        ("p.csv", "text,positive\na,b\nc,d\ne,f\n", {"range_max": 1, "num_negatives": 2}, "Cannot mine 2"),
    ],
)
def test_what_cannot_be_mined_is_one_message(run, tmp_path, file, content, flags, said):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=said):
        call(main, run, pairs=tmp_path / file, out=tmp_path / "mined", **flags)


def test_a_folder_of_something_else_is_refused(run, pairs_file, tmp_path):
    with pytest.raises(UserError, match="holds something else"):
        call(main, run, pairs=pairs_file, out=tmp_path)


@pytest.mark.full
def test_a_run_trains_on_what_was_mined(run, pairs_file, tmp_path):
    call(main, run, pairs=pairs_file, out=tmp_path / "mined", num_negatives=2)
    words = ["-m", "pretrain.prepare", "--source", tmp_path / "mined", "--out", tmp_path / "data"]
    words += ["--unit", "record", "--vocabulary", "320", "--heldout", "0.1", "--progress", "false"]
    done = run_python(list(map(str, words)), environment(), ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert manifest["columns"] == ["text", "positive", "negative"]
    settings = {
        "objective.name": "simcse", "objective.simcse.hard_negatives": "true", "objective.mlm.weight": 0,
        "augment.spec": "none", "train.steps": 2, "train.warmup_steps": 0, "evaluate.every": 0,
    }  # fmt: skip
    finish(start([*command(tmp_path / "data", tmp_path / "trained", **settings)]))
    rows = [json.loads(line) for line in (tmp_path / "trained" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"]["simcse"] for row in rows if "simcse" in row.get("loss", {})]
    assert len(losses) == 2 and all(loss > 0 for loss in losses)
