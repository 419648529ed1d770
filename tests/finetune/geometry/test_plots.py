"""What the figures of geometry draw, by their lines and dots; which augmentations are measured."""

import json

import numpy as np
import pytest
from commands import call
from model_folders import write_function
from word_sentences import sentences

from augment.core.errors import AugmentationError
from augment.core.vocabulary import Vocabulary
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import needs_text
from finetune.encoders.models import open_model
from finetune.figures.drawing import GREY, Dot, Line, colour, draw_dots, draw_lines, histogram, new_panels
from finetune.geometry import __main__ as geometry
from finetune.geometry import augmentations as measures
from finetune.geometry import run
from finetune.geometry.options import GeometryOptions
from finetune.geometry.plots import all_figures
from finetune.results import Evaluation, read


def lines_of(axis):
    return [(line.get_label(), line.get_xydata().tolist(), line.get_color()) for line in axis.get_lines()]


def model(number, **figures):
    found = Evaluation("geometry", "m", "mean", None, "p")
    for name, value in figures.items():
        found.add(name, "x", {"x": value})
    curve = {"top": [1, 5], "purity": [0.25 + number, 0.125], "distance": [0.5, 0.75]}
    found.add("neighbourhood/own", "x", {"x": 1.0}, cosine=curve)
    drawn = {"edges": [0.0, 1.0, 3.0], "density": [0.5, 0.25]}
    found.add("nli", "x", {"x": 1.0}, entailment=drawn, contradiction=drawn, ratio=drawn)
    found.add("augmentation/one", "cosine", {"cosine": 0.5 + number / 10})
    found.add("augmentation/two", "changed", {"changed": 1.0})
    return found


def test_figures_hold_the_figures():
    one, two = model(0, alignment=0.2, uniformity=-2.0), model(1, alignment=0.3, uniformity=-1.5)
    drawn = all_figures([("first", one), ("second", two)])
    assert list(drawn) == [
        "alignment_uniformity", "nli_distances", "neighbourhood_own", "augmentation_cosine"
    ]  # fmt: skip
    (axis,) = drawn["alignment_uniformity"].axes
    assert [points for _, points, _ in lines_of(axis)] == [[[-2.0, 0.2]], [[-1.5, 0.3]]]
    assert axis.get_xlabel().startswith("uniformity") and axis.get_ylabel().startswith("alignment")
    same, apart = drawn["neighbourhood_own"].axes
    assert [points for _, points, _ in lines_of(same)] == [
        [[1, 25.0], [5, 12.5]], [[1, 125.0], [5, 12.5]]
    ]  # fmt: skip
    assert lines_of(apart)[0][1] == [[1, 0.5], [5, 0.75]] and same.get_xscale() == "log"
    assert [shade for *_, shade in lines_of(same)] == [colour(0), colour(1)]
    assert same.get_title() == "own: same class, %" and same.get_ylim()[0] == 0
    near, ratio = drawn["nli_distances"].axes
    assert [points for _, points, _ in lines_of(near)] == [[[0.5, 0.5], [2.0, 0.25]]] * 4
    assert [line.get_linestyle() for line in near.get_lines()] == ["-", "--", "-", "--"]
    assert lines_of(ratio)[0][1] == [[1, 0], [1, 1]] and len(lines_of(ratio)) == 3
    (axis,) = drawn["augmentation_cosine"].axes
    dots = [
        line.get_xydata().tolist()[0]
        for line in axis.get_lines()
        if line.get_marker() == "o" and len(line.get_xydata())
    ]
    assert dots[:2] == [[0.5, pytest.approx(-0.2)], [0.6, pytest.approx(0.2)]]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["one"]
    assert [text.get_text() for text in drawn["augmentation_cosine"].legends[0].get_texts()] == [
        "first", "second"
    ]  # fmt: skip
    alone = Evaluation("geometry", "m", "mean", None, "p")
    alone.add("uniformity", "x", {"x": 1.0})
    assert all_figures([("first", alone)]) == {}


def test_panels_stand_in_rows_and_bars_have_their_spread():
    figure, axes = new_panels(5, across=2)
    assert len(axes) == 5 and [axis.get_visible() for axis in figure.axes] == [True] * 5 + [False]
    assert figure.get_size_inches().tolist() == pytest.approx([6.8, 8.1])
    assert new_panels(1)[0].get_size_inches().tolist() == pytest.approx([4.6, 3.2])
    assert new_panels(1, 5.0)[0].get_size_inches().tolist() == pytest.approx([4.6, 5.0])
    assert new_panels(4)[0].get_size_inches().tolist() == pytest.approx([13.6, 2.7])
    drawn = draw_lines({"t": [Line("a", [1, 2], [3, 4], "red", spread=[0.5, 1]), Line("b", [], [7], GREY)]})
    (axis,) = drawn.axes
    ends = [segment.tolist() for segment in axis.collections[0].get_segments()]
    assert ends == [[[1, 2.5], [1, 3.5]], [[2, 3], [2, 5]]]
    assert lines_of(axis)[-1][1] == [[0, 7], [1, 7]]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["b", "a"]
    assert not draw_lines({"t": [Line("a", [1], [3], "red")]}).legends
    dots = draw_dots({"t": [Dot(0, 1, 0.5, 2, "red")], "u": []}, ["row"], {}, "x", zero=True)
    first, second = dots.axes
    assert lines_of(first)[0][1] == [[0.5, 0], [2, 0]] and lines_of(first)[1][1] == [[1, 0]]
    assert lines_of(second)[0][1] == [[0, 0], [0, 1]] and first.get_ylim() == (0.5, -0.5)
    assert colour(0) == colour(9) != colour(1) and first.get_xlabel() == "x"


def test_histograms_are_numpys():
    values = np.random.default_rng(0).uniform(0, 4, 500)
    found = histogram(values, highest=3.0)
    heights, edges = np.histogram(values, bins=60, range=(0, 3), density=True)
    assert found["density"] == pytest.approx(heights, abs=1e-5) and found["edges"] == pytest.approx(
        edges, abs=1e-5
    )
    assert (found["edges"][0], found["edges"][-1]) == (0, 3)
    assert histogram(values)["edges"][-1] == pytest.approx(values.max(), abs=1e-5)


def test_all_augmentations_are_those_without_a_model_in_each_variant():
    found = GeometryOptions(aug="all").augmentations
    without = [name for name, entry in CATALOGUE.items() if not any("model:" in one for one in entry.needs)]
    assert {one.partition(":")[0] for one in found} == set(without) != set(CATALOGUE)
    assert "antonyms:variant=code" in found and "reorder" in found and len(set(found)) == len(found)
    assert GeometryOptions(aug=" subs ; ;yoda").augmentations == ["subs", "yoda"]
    assert GeometryOptions().augmentations == []
    assert set(measures.DEFAULTS) < {*found, "del-span,reorder"} and "del-span,reorder" in measures.DEFAULTS
    assert not any(needs_text(one) for one in measures.DEFAULTS)
    options = GeometryOptions()
    assert (options.neighbours, options.sentences, options.seed) == (("stackoverflow",), 1000, 0)


def test_a_large_file_of_triplets_is_sampled_in_order(tmp_path, monkeypatch):
    (tmp_path / "NLI").mkdir()
    rows = "".join(f"p{n},e{n},c{n}\n" for n in range(50))
    (tmp_path / "NLI" / "nli_for_simcse.csv").write_text("sent0,sent1,hard_neg\n" + rows)
    assert len(run.read_nli(GeometryOptions(eval_data=str(tmp_path)))[0]) == 50
    monkeypatch.setattr(run, "NLI_SAMPLE", 50)
    assert len(run.read_nli(GeometryOptions(eval_data=str(tmp_path)))[0]) == 50
    monkeypatch.setattr(run, "NLI_SAMPLE", 9)
    (one, file), (other, _) = (run.read_nli(GeometryOptions(eval_data=str(tmp_path), seed=n)) for n in (0, 1))
    places = [int(premise[1:]) for premise, *_ in one]
    assert len(set(places)) == 9 and places == sorted(places) and one != other
    assert all(row == (f"p{n}", f"e{n}", f"c{n}") for n, row in zip(places, one))
    assert file == "nli_for_simcse.csv"


def test_augmentations_that_cannot_be_had_are_notes_unless_they_were_named(tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences(12)) + "\n")
    function = write_function(
        tmp_path / "letters_of_mine.py", "[len(t), t.count('a'), t.index('a') if 'a' in t else 9]"
    )
    flags = {"text_file": tmp_path / "texts.txt", "measure": "augmentation", "out": tmp_path}
    view = measures.AugmentedSentences.view

    def refuse(self, specification):
        if specification == "subs":
            raise AugmentationError("it has no table")
        return view(self, specification)

    monkeypatch.setattr(measures.AugmentedSentences, "view", refuse)
    call(geometry.geometry, function, label="mine", **flags)
    found = read(tmp_path / "geometry-mine-function.json")
    assert "without subs: it has no table" in found.notes and "augmentation/reorder" in found.tasks
    assert any("work on a word tokenizer of these sentences" in note for note in found.notes)
    assert "augmentations: 12 sentences of texts.txt; figures over those that change" in found.notes
    task = found.tasks["augmentation/reorder"]
    assert task.metric == "cosine" and task.std == task.scores["cosine_std"] > 0
    with pytest.raises(AugmentationError, match="it has no table"):
        call(geometry.geometry, function, aug="subs", **flags)
    call(geometry.geometry, function, aug="none", **flags)
    found = read(tmp_path / "geometry-function.json")
    assert found.tasks["augmentation/none"].metric == "changed"
    assert "none changes 0 of 12 sentences: too few" in found.notes
    call(geometry.geometry, function, aug="reorder", sentences=11, **flags)
    assert read(tmp_path / "geometry-function.json").tasks["augmentation/reorder"].details["sentences"] <= 11


def test_sentences_are_of_sts_where_no_file_is_named(tmp_path, monkeypatch):
    class Part:
        first, second = ["a b", "c d"], ["e f", "a b"]

    monkeypatch.setattr(run, "read_sts", lambda options: [Part])
    texts, source, parses, _ = run.read_augmentation(GeometryOptions())
    assert texts == ["a b", "c d", "e f"] and source == "STS-B dev and test" and parses is None


def test_a_padded_models_own_tokenizer_is_taken_if_it_can_be(folder, tmp_path):
    from model_folders import save_guest

    guest = open_model(save_guest(folder, tmp_path / "guest", "max", longest=40))
    texts = sentences(6)
    found = measures.AugmentedSentences(guest, texts)
    assert found.encoder is None and found.notes == [] and len(found.tokenizer) == len(guest.runs.tokenizer)
    np.testing.assert_allclose(found.vectors, guest.encode(texts), atol=1e-6)
    view = found.view("del-word:rate=0.5")
    number = int(np.flatnonzero(view.changed)[0])
    before, after = found.pair(view, number)
    assert before == texts[number] and found.text_of(view, number) != after != before
    assert found.text_of(view, number).replace("[DEL] ", "").removesuffix(" [DEL]") == after
    special = Vocabulary.from_tokenizer(found.tokenizer).special
    assert not special[view.rows[number][1:-1]].all()
    (tmp_path / "guest" / "tokenizer.json").write_text(json.dumps({}))
    assert measures._own_tokenizer(guest) is None
