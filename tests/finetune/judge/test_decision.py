"""What is kept of an adaptation, by figures that are given; parts, limits and sizes by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from model_folders import save_bert
from safetensors.torch import save_file

from augment.text.cleaning import clean
from finetune.answers import Answers
from finetune.encoders.models import open_model
from finetune.judge import choice, heldout, parts
from finetune.judge.averaging import ALPHAS
from finetune.judge.choice import MOST_FORGOTTEN, Judge, choose, general_test, report_lines
from finetune.judge.costs import cost_lines, size_of
from finetune.judge.heldout import HALVES, make_test
from finetune.judge.parts import joined, part_size, without_neighbours
from finetune.judge.scores import ADAPTED, BM25, START, Halves
from finetune.nanobeir import FOLDER, read
from finetune.results import Evaluation
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.config.data import data_config
from pretrain.export.sums import WEIGHTS
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.structure import Document

WORDS = [f"word{number}" for number in range(200)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("decision"), np.random.default_rng(0)
    rows = [
        {"title": " ".join(draw.choice(WORDS, 4)), "text": " ".join(draw.choice(WORDS, 12))}
        for _ in range(300)
    ]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = data_config({"sources": str(folder / "mine.jsonl")}).sources
    return make_test(sources, folder / "judge", 0, False), folder / "judge"


def write_weights(folder, alpha):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_text(f"{alpha:g}")
    return folder


def alpha_of(folder):
    return float((folder / WEIGHTS).read_text())


@pytest.mark.parametrize(
    "dev,test,general,kept,row,forgot",
    [
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [80, 80, 80, 80, 80], ADAPTED, ADAPTED, ""),
        ([0, 1, 3, 2, 1], [0, 1, 2, 3, 4], [80, 80, 80, 80, 80], "averaged (0.5)", "averaged (0.5)", ""),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, None], [80, 80, 80, 80, 80], START, ADAPTED, ""),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [80, 79, 79, 78.9, 70], *["averaged (0.5)"] * 2, ADAPTED),
        ([0, -1, -2, -3, 4], [0, 1, 2, 3, 4], [80, 80, 80, 80, 70], START, START, ADAPTED),
        ([0, -1, -2, -3, 4], [0, 1, 2, 3, None], [80, 80, 80, 80, 70], START, START, ""),
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], None, ADAPTED, ADAPTED, ""),
    ],
)  # fmt: skip
def test_what_is_better_on_both_halves_and_has_not_forgotten_is_kept(
    made, tmp_path, monkeypatch, capsys, dev, test, general, kept, row, forgot
):
    """Gains over the start by alpha; None: by as much worse as better, query by query."""
    start, trained = str(tmp_path / "start"), write_weights(tmp_path / "trained", 1)
    judge = Judge(made[0], made[1], lambda: 0.0, general_test(""), "")
    rng = np.random.default_rng(0)
    sizes = {half: len(one.queries) for half, one in judge.halves.sets.items()}
    base = {half: rng.uniform(20, 60, (3, size)) for half, size in sizes.items()}

    def scores(alpha):
        at = ALPHAS.index(alpha)
        found = {"dev": base["dev"] + dev[at], "test": base["test"].copy()}
        sign = np.where(np.arange(sizes["test"]) % 2, 5.0, -5.0)
        found["test"] += sign if test[at] is None else test[at]
        return found

    def similarity(self, alpha):
        if general is None:
            raise CollapsedEncoder("one vector")
        found, value = Evaluation("general", "m", "mean", None, "p"), float(general[ALPHAS.index(alpha)])
        drawn = np.random.default_rng(int(4 * alpha)).random(40)
        answers = Answers.of(drawn, np.arange(40.0), "spearman", "d")
        found.add(self.general.name, "spearman", {"spearman": value}, answers=answers)
        return found

    def average(given, adapted, alpha, out):
        assert (given, adapted) == (start, trained)
        return write_weights(out, alpha)

    seen = {}
    monkeypatch.setattr(choice, "average", average)
    monkeypatch.setattr(choice, "keep_start", lambda given, adapted, out: average(given, adapted, 0, out))
    monkeypatch.setattr(Halves, "of_model", lambda self, alpha: scores(alpha))
    monkeypatch.setattr(Judge, "_similarity_of", similarity)
    left_out = {}, {}, {"a row": "so"}
    monkeypatch.setattr(
        choice, "by_products", lambda best, text, *_: seen.update(best=best, text=text) or left_out
    )
    monkeypatch.setattr(Judge, "_costs", lambda self, start, made, open_model: {"made": sorted(made)})
    judge.scores = {START: scores(0.0), BM25: {half: base[half] - 1 for half in HALVES}}
    best = tmp_path / "best"
    report = judge.decide(start, trained, best, alpha_of)
    assert f"{len(ALPHAS)}/{len(ALPHAS)}: {ADAPTED}\n" in capsys.readouterr().out
    assert (report["kept"], report["chosen"]["row"], report["forgot"]) == (kept, row, forgot)
    share = {START: 0.0, ADAPTED: 1.0, "averaged (0.5)": 0.5}
    assert report["chosen"]["alpha"] == share[row]
    assert alpha_of(best) == share[kept]
    for half, gains in (("dev", dev), ("test", test)):
        expected = {f"{alpha:g}": base[half][0].mean() + (gain or 0) for alpha, gain in zip(ALPHAS, gains)}
        if None not in gains:
            assert report["chosen"][half] == pytest.approx(expected)
    assert set(report["rows"]) == {START, BM25, ADAPTED, row, *([forgot] if forgot else [])}
    assert report["costs"]["made"] == sorted({ADAPTED} | ({kept} - {START}))
    assert seen["best"] == best and json.loads(seen["text"]) == [{"source": f"{made[1]}/train-*.jsonl"}]
    assert not (made[1] / "averaged").exists() and report["left_out"] == {"a row": "so"}
    similar = report["similarity"]
    assert list(similar) == ([] if general is None else [f"{alpha:g}" for alpha in ALPHAS])
    if general is not None:
        assert similar["0"]["value"] == 80.0 and "difference" not in similar["0"]
        assert similar["1"]["difference"] == pytest.approx(general[4] - 80)
    report["costs"] = {}
    lines = report_lines(report)
    assert "  a row: not made (so)" in lines and lines[-1].endswith(" than BM25")
    assert any("gives all of its sentences one vector" in line for line in lines) is (general is None)
    against = f"  {row if row != START else ADAPTED} against start: "
    assert sum(line.startswith(against) for line in lines) == 1
    assert report["weights"] == [choice.sha256_of(folder / WEIGHTS) for folder in (trained, best)]


def test_what_forgot_just_as_much_as_is_allowed_is_taken_and_what_was_not_measured_is_not():
    dev = {0.0: 40.0, 0.5: 44.0, 1.0: 45.0}
    assert choose(dev, {0.0: 82.0, 0.5: 81.5, 1.0: 82.0 - MOST_FORGOTTEN}) == 1.0 and MOST_FORGOTTEN == 1
    assert choose(dev, {0.0: 82.0, 1.0: 70.0}) == 0.0
    assert choose({1.0: 45.0, 0.25: 45.0, 0.0: 40.0}, {}) == 0.25


def test_a_share_of_what_was_trained_is_said_with_the_last_line():
    rows = {
        "averaged (0.25)": {"less": {START: {"value": 2.0, "low": 1.0, "high": 3.0, "verdict": "better"}}}
    }
    report = {"table": ["t"], "similarity": {"0.5": {"value": 70.0}}, "rows": rows, "costs": {}}
    report |= {
        "kept": "averaged (0.25)",
        "chosen": {"alpha": 0.25, "row": "averaged (0.25)", "dev": {"0": 1.0}},
    }
    lines = report_lines(report)
    assert (
        lines[-1] == "  best/ is an average, 0.25 of it what was trained: better than the start on your text"
    )
    assert not any(": 70.0" in line for line in lines)  # no row of the table


# -- sizes ----------------------------------------------------------------


def test_sizes_of_weights_by_what_lies_in_the_folder(tmp_path):
    assert size_of(None) == (0, 0.0) == size_of(tmp_path) and cost_lines({}) == []
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.float16)}, tmp_path / "x.safetensors")
    assert size_of(tmp_path) == (22, (60 + 14) / 1e6)
    (tmp_path / "2_Dense").mkdir()
    save_file({"linear.weight": torch.zeros(4)}, tmp_path / "2_Dense" / "model.safetensors")
    (tmp_path / "2_Dense" / "config.json").write_text('{"in_features": 4}')
    assert size_of(tmp_path)[0] == 26
    table = tmp_path / "0_StaticEmbedding"
    table.mkdir()
    save_file({"embedding.weight": torch.zeros(6, 2)}, table / "model.safetensors")
    assert size_of(tmp_path) == (12, 48 / 1e6)
    (table / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged: .*; fetch the model again"):
        size_of(tmp_path)


def test_costs_are_of_the_start_in_its_folder_and_of_what_was_made(made, tmp_path, monkeypatch):
    judge = Judge(
        made[0], made[1], lambda: open_model(lambda texts: np.eye(len(texts), 3)), general_test(""), ""
    )
    start, other = save_bert(tmp_path / "bert", num_hidden_layers=1), tmp_path / "other"
    opened = open_model(lambda texts: np.eye(len(texts), 5))
    found = judge._costs(str(start), {"adapted": other}, lambda folder: opened if folder == other else None)
    assert [(row, one["width"], bool(one["parameters"])) for row, one in found.items()] == [
        (START, 3, True),
        ("adapted", 5, False),
    ]
    monkeypatch.setattr(choice, "cached_folder", {"owner/name": start}.get)
    assert judge._costs("owner/name", {}, None)[START]["parameters"] == found[START]["parameters"]


# -- the test of a text ----------------------------------------------------


def key_of(row, seed):
    return xxhash.xxh64_intdigest(clean(f"{row['title']}\n{row['text']}").encode(), seed)


@pytest.mark.parametrize(
    "limits,most",
    [
        ({}, 80),
        ({"MOST_DOCUMENTS": 30}, 30),
        ({"MOST_CHARACTERS": 2000}, 2000 / 60 + 8),
        ({"SHARE": 0.1}, 40),
    ],
)
def test_the_documents_of_the_smallest_keys_are_held_out_up_to_the_limits(
    tmp_path, monkeypatch, limits, most
):
    for name, value in limits.items():
        monkeypatch.setattr(heldout, name, value)
    draw = np.random.default_rng(1)
    rows = [{"title": f"title {n}", "text": " ".join(draw.choice(WORDS, 9))} for n in range(400)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    test = make_test(sources, tmp_path / "judge", 5, False)
    places = {half: tmp_path / "judge" / FOLDER / half for half in HALVES}
    asked = {query for place in places.values() for query in read(place).queries}
    assert len(asked) == test.counts["heldout"] and 0.5 * most < len(asked) < 1.5 * most + 6
    by_key = sorted(rows, key=lambda row: key_of(row, 5))
    assert asked == {row["title"] for row in by_key[: len(asked)]}
    share = min(0.2, *([limits["SHARE"]] if "SHARE" in limits else [1]))
    inside = sum(key_of(row, 5) < share * 2**64 for row in rows)
    if not limits.keys() - {"SHARE"}:
        assert len(asked) == inside
    if "MOST_DOCUMENTS" in limits:
        assert len(asked) == sum(key_of(row, 5) < 30 / 400 * 2**64 for row in rows)


def test_passages_and_queries_are_limited_and_of_documents_in_turn(monkeypatch):
    pairs = [
        (0, ("q0", "a")),
        (0, ("q1", "b")),
        (0, ("q0", "c")),
        (0, ("q0", "a")),
        (1, ("q2", "dd")),
        (1, ("q1", "a")),
    ]
    passages, relevant, of_documents = heldout._choose(pairs, 0)
    assert passages == ["a", "dd", "b", "c"] and of_documents == {"q0": 0, "q2": 1, "q1": 0}
    assert relevant == {"q0": [0, 3], "q2": [1], "q1": [2, 0]} and list(relevant) == list(of_documents)
    monkeypatch.setattr(heldout, "MOST_PASSAGES", 3)
    assert heldout._choose(pairs, 0)[0] == ["a", "dd", "b"]
    monkeypatch.setattr(heldout, "MOST_PASSAGES", 9)
    for most, found in ((3, ["a", "dd"]), (4, ["a", "dd", "b"])):
        monkeypatch.setattr(heldout, "MOST_PASSAGE_CHARACTERS", most)
        assert heldout._choose(pairs, 0)[0] == found
    monkeypatch.setattr(heldout, "MOST_QUERIES", 2)
    monkeypatch.setattr(heldout, "MOST_PASSAGE_CHARACTERS", 99)
    few = heldout._choose(pairs, 0)
    assert len(few[1]) == 2 and few[1].keys() == few[2].keys() and len(few[0]) == 4
    many = [(n, (f"q{n}", f"p{n}")) for n in range(40)]
    orders = [list(heldout._choose(many, seed)[1]) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_rows_to_train_on_share_no_text_with_the_test():
    document = Document.of_sections(
        [(f"Heading {n} of it", f"Here the text number {n} of it stands.") for n in (1, 2)]
    )
    rows = list(heldout._rows(document, set(), "heading"))
    assert len(rows) == 2 and set(rows[0]) == {"text", "positive"}
    assert list(heldout._rows(document, {rows[0]["text"]}, "heading")) == rows[1:]
    assert list(heldout._rows(document, {rows[1]["positive"]}, "heading")) == rows[:1]
    assert list(heldout._rows(document, {"x"}, "")) == [{"text": document.whole}]
    plain = Document("One sentence stands here first. Another sentence stands behind it there.")
    assert (
        list(heldout._rows(plain, set(), "heading")) == list(heldout._rows(plain, set(), "neighbour")) != []
    )


@pytest.mark.parametrize("count,split", [(parts.FEW, False), (parts.FEW - 1, True)])
def test_a_text_of_fifty_documents_is_not_split(tmp_path, count, split):
    texts = [f"{n} " + "x" * 9998 for n in range(count)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    found = part_size(plan_tasks(list(sources), structure=True), sources)
    assert found == (sum(map(len, texts)) // 200 if split else 0)
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": "short"}) + "\n")
    assert part_size(plan_tasks(list(sources), structure=True), sources) == 1000


def test_parts_have_their_size_and_lose_their_neighbours():
    lines = [f"{n:02d} " + "y" * 97 for n in range(20)]
    found = parts._parts(Document("\n".join(lines)), 300)
    assert [len(part) for part in found] == [3] * 6 + [2]
    assert [one.text for part in found for one in part] == lines
    assert parts._parts(Document("short"), 300) == [[Document("short")]]
    held = [False, True, False, False, True, True, False]
    kept = without_neighbours(found, held)
    # 300 characters are three lines: a whole part
    assert [len(part) for part in kept] == [0, 3, 0, 0, 3, 3, 0]
    sections = Document.of_sections([(f"h{n}", "z" * 150) for n in range(8)])
    found = parts._parts(sections, 400)
    assert [len(part) for part in found] == [3, 3, 2]
    kept = without_neighbours(found, [True, False, False])
    assert [[one.sections[0][0] for one in part] for part in kept] == [
        ["h0", "h1", "h2"],
        ["h5"],  # without h3 and h4, which have 300 characters
        ["h6", "h7"],
    ]
    kept = without_neighbours(found, [False, False, True])
    assert [[one.sections[0][0] for one in part] for part in kept][1] == ["h3"]
    assert joined(found[2]) == Document.of_sections([("h6", "z" * 150), ("h7", "z" * 150)])
    assert joined([Document("a"), Document("b")]) == Document("a\nb") and joined([sections]) is sections


def test_a_large_section_is_cut_into_sentences_under_its_heading_once():
    text = " ".join(f"Sentence {n} of the section stands here." for n in range(12))
    found = list(parts._pieces(Document.of_sections([("Head", text), ("Next", "short")]), 120))
    assert found[0].sections[0][0] == "Head" and found[-1].sections == (("Next", "short"),)
    assert all(one.sections[0][0] == "" for one in found[1:-1]) and len(found) == 13
    exact = list(parts._pieces(Document.of_sections([("Head", "w" * 120)]), 120))
    assert exact == [Document.of_sections([("Head", "w" * 120)])]
    assert next(parts._pieces(Document("a b\n" + text), 400)).text == "a b"


def test_files_of_the_text_are_known_by_their_contents(tmp_path):
    outside = tmp_path / "run"
    (tmp_path / "docs").mkdir()
    outside.mkdir()
    for name in ("a.md", "b.py", "c.bin", "d.arrow"):
        (tmp_path / "docs" / name).write_text(name)
    found = heldout.contents_of(data_config({"sources": str(tmp_path / "docs")}).sources, outside)
    assert {Path(file).name for file in found} >= {"a.md", "d.arrow"} and "c.bin" not in str(found)
    alone = heldout.contents_of(data_config({"sources": str(tmp_path / "docs" / "a.md")}).sources, outside)
    assert list(alone) == [str(tmp_path / "docs" / "a.md")]
    assert heldout.contents_of(data_config({"sources": str(tmp_path / "docs")}).sources, tmp_path) == {}
