"""Quality of augmentations: rate and overlap against figures made by hand, losses against the padded
model's."""

import json
import warnings

import numpy as np
import pytest
import torch
from commands import call
from model_folders import write_function
from transformers import AutoModelForMaskedLM, AutoTokenizer

from augment.text.parsed import without_parse
from finetune.augmentation_quality import __main__ as aq
from finetune.augmentation_quality import measures as am
from finetune.augmentation_quality import run
from finetune.encoders.models import open_model
from finetune.geometry.augmentations import AugmentedSentences
from pretrain.common.errors import UserError

ANIMALS = ("dog", "horse", "man", "child")
# Eight of the twenty have a number in figures.
TEXTS = [f"the {one} sings {number} times" for one in ANIMALS for number in (2, 3)]
TEXTS += [f"the {one} eats a {other} and sings" for one in ANIMALS for other in ANIMALS if one != other]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("A man has 3 dogs.", "a man has three dogs!", 4 / 6),
        ("The dog; the dog", "the “dog”", 1.0),
        ("don't", "do n't", 0.0),  # one word, and two others
        ("我们 走", "我走", 2 / 3),
        ("...", "!", 1.0),
    ],
)
def test_overlap_of_words(first, second, expected):
    assert am.jaccard(first, second) == pytest.approx(expected)


def test_words_are_aligned_in_order():
    assert am.align(list("abcd"), list("xabd")) == [(0, 1), (1, 2), (3, 3)]


@pytest.fixture(scope="module")
def augmented(folders):
    model = open_model(folders["bert"], "mean")
    return AugmentedSentences(model, TEXTS, 3, [without_parse(text) for text in TEXTS])


def test_a_change_of_quotes_or_spaces_is_none(augmented):
    texts = {0: TEXTS[0] + "  ", 1: TEXTS[1].replace("dog", "“dog”"), 7: TEXTS[7].replace(" ", "  ")}
    rewriting = augmented.rewritten("mine", texts)
    np.testing.assert_array_equal(np.flatnonzero(rewriting.changed), [0, 1, 7])
    np.testing.assert_array_equal(am.changed_rows(augmented, rewriting), [1])


def test_vectors_of_texts_and_cosines_are_those_of_the_model(augmented, folders, monkeypatch):
    texts = {1: "the horse reads", 2: "a good man sings"}
    rewriting, which = augmented.rewritten("mine", texts), np.array([1, 2])
    model = open_model(folders["bert"], "mean")
    np.testing.assert_allclose(
        augmented.vectors_of(rewriting, which), model.encode(list(texts.values())), atol=1e-6
    )
    pairs = model.encode([TEXTS[1], TEXTS[2], *texts.values()]).astype(float)
    pairs /= np.linalg.norm(pairs, axis=1, keepdims=True)
    cosines = am.Cosines(augmented)
    for _ in range(2):  # the second time from what is known
        np.testing.assert_allclose(cosines(rewriting, which), (pairs[:2] * pairs[2:]).sum(1), atol=1e-6)
        monkeypatch.setattr(augmented, "vectors_of", None)


def test_losses_are_the_padded_models_under_the_same_masks(augmented, folders):
    """Word by word from the definition, with transformers' model and one sentence at a time."""
    numbers = np.arange(8, 18)
    texts = {
        10: "good " + TEXTS[10],
        13: TEXTS[13].replace("horse", "woman"),
        16: "river not bad",
        19: "a dog",
    }
    rewriting = augmented.rewritten("mine", texts)
    losses = am.MaskedLosses(augmented, numbers)
    over_all, over_kept = losses.changes(rewriting, np.array(sorted(texts)))
    model = AutoModelForMaskedLM.from_pretrained(folders["bert"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders["bert"])

    def by_word(words, rounds):
        ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
        found = {}
        for number in range(am.MASK_ROUNDS):
            row, labels = [tokenizer.cls_token_id], []
            for w, pieces in enumerate(ids):
                labels += [(len(row) + k, w, piece) for k, piece in enumerate(pieces) if rounds[w] == number]
                row += [tokenizer.mask_token_id] * len(pieces) if rounds[w] == number else pieces
            with torch.no_grad():
                logs = model(torch.tensor([[*row, tokenizer.sep_token_id]])).logits[0].log_softmax(-1)
            for place, w, piece in labels:
                found[w] = found.get(w, 0.0) - logs[place, piece].item()
        return found

    expected_all, expected_kept = [], []
    for n, kept in ((10, {i: i + 1 for i in range(7)}), (13, {i: i for i in range(7) if i != 1}), (16, {})):
        old, new = TEXTS[n].split(), texts[n].split()
        shift = int(losses.rounds(n, 1, [])[0])
        rounds = [(i + shift) % am.MASK_PERIOD for i in range(len(old))]
        new_rounds = [(j + shift) % am.MASK_PERIOD for j in range(len(new))]
        for i, j in kept.items():
            new_rounds[j] = rounds[i]
        before, after = by_word(old, rounds), by_word(new, new_rounds)
        if before and after:
            expected_all.append(np.mean(list(after.values())) - np.mean(list(before.values())))
        both = [after[j] - before[i] for i, j in kept.items() if i in before]
        if both:
            expected_kept.append(np.mean(both))
    np.testing.assert_allclose(over_all, expected_all, atol=1e-4)
    np.testing.assert_allclose(over_kept, expected_kept, atol=1e-4)
    assert len(over_kept)


@pytest.fixture(scope="module")
def parser(tmp_path_factory) -> str:
    """A spaCy pipeline that has learned the twenty sentences: the root is the verb behind the animal."""
    import spacy
    from spacy.training import Example

    pipeline = spacy.blank("en")
    pipeline.add_pipe("tagger")
    pipeline.add_pipe("parser", config={"min_action_freq": 1})
    short = {"tags": ["DT", "NN", "VBZ", "CD", "NNS"], "heads": [1, 2, 2, 4, 2]}
    short["deps"] = ["det", "nsubj", "ROOT", "nummod", "obj"]
    long = {"tags": ["DT", "NN", "VBZ", "DT", "NN", "CC", "VBZ"], "heads": [1, 2, 2, 4, 2, 6, 2]}
    long["deps"] = ["det", "nsubj", "ROOT", "det", "obj", "cc", "conj"]
    examples = [
        Example.from_dict(pipeline.make_doc(text), short if "times" in text else long) for text in TEXTS
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = pipeline.initialize(lambda: examples)
        for _ in range(15):
            pipeline.update(examples, sgd=optimizer)
    pipeline.add_pipe("attribute_ruler").add([[{"TAG": "VBZ"}]], {"POS": "VERB"})
    folder = tmp_path_factory.mktemp("parser") / "tiny"
    pipeline.to_disk(folder)
    return str(folder)


def test_the_command(folders, parser, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    where = {
        "text_file": tmp_path / "texts.txt",
        "parser": parser,
        "out": tmp_path / "out",
        "pooling": "mean",
    }
    call(aq.main, str(folders["bert"]), **where, aug="number-words;repeat;del-word", masked="20")
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = found["augmentations"]
    numbers = rows["number-words"]
    expected = {"changed": 8, "rate": 40.0, "same": 0, "not_applicable": 12}
    assert {name: numbers[name] for name in expected} == expected
    assert numbers["jaccard"] == pytest.approx(4 / 6)  # one of five words is another
    means = {
        "jaccard",
        *(name + end for name in ("cosine", "loss_all", "loss_kept") for end in ("", "_error")),
    }
    assert set(numbers) == {"rate", "changed", "not_applicable", "same", "samples"} | means
    assert numbers["cosine"] < 1 and np.isfinite([numbers["loss_all"], numbers["loss_kept"]]).all()
    assert len(numbers["samples"]) == 5
    for before, after in numbers["samples"]:
        assert before in TEXTS and after == before.replace("2", "two").replace("3", "three") != before
    assert rows["repeat"]["rate"] > 0 and 0 < rows["repeat"]["jaccard"] <= 1
    assert any("del-word" in note and "[DEL]" in note for note in found["notes"])
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert len(table) == 2 + len(rows) and len({line.count("|") for line in table}) == 1

    def again(*_):
        raise AssertionError("made again")

    monkeypatch.setattr(run.Quality, "measure", again)
    monkeypatch.setattr("pretrain.data.annotate.Annotator._parse", again)
    call(aq.main, str(folders["bert"]), **where, aug="number-words;repeat;del-word", masked="20")
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    with pytest.raises(AssertionError, match="made again"):
        call(aq.main, str(folders["bert"]), **where, aug="repeat:rate=0.9", masked="20")
    with pytest.raises(UserError, match="--masked: Input should be a valid integer"):
        call(aq.main, str(folders["bert"]), **where, masked="x")


def test_an_encoder_without_tokenizer_or_masked_language_head(parser, tmp_path):
    model = write_function(tmp_path / "mine.py", "[len(t), t.count('s'), 1]")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    where = {"text_file": tmp_path / "texts.txt", "parser": parser, "out": tmp_path}
    call(aq.main, model, **where, aug="number-words;del-word", also="crop;number-words|none")
    found = json.loads((tmp_path / "results.json").read_text())
    before, after = [(len(text), text.count("s"), 1) for text in (TEXTS[0], TEXTS[0].replace("2", "two"))]
    cosine = np.dot(before, after) / np.linalg.norm(before) / np.linalg.norm(after)
    # of all eight about the same
    assert found["augmentations"]["number-words"]["cosine"] == pytest.approx(cosine, abs=1e-3)
    assert list(found["augmentations"]) == ["number-words", "del-word", "crop", "number-words|none"]
    assert 0 < found["augmentations"]["number-words|none"]["rate"] <= 40
    assert (
        "loss_all" not in found["augmentations"]["number-words"]
        and "loss" not in (tmp_path / "table.md").read_text()
    )
    assert any("does not run as a masked language model" in note for note in found["notes"])


def test_every_augmentation_without_a_model_of_its_own():
    names = run.every_specification()
    assert {"pi", "pi:variant=code", "neg:variant=code", "del-word", "tense"} <= set(names)
    assert not {"contextual", "back-translation"} & set(names) and len(set(names)) == len(names)
