"""Augmentations as a small model sees them; the command on a small data folder."""

import csv

import numpy as np
import pytest
import torch
from commands import call
from model_folders import make_tokenizer, save_bert
from real_data import DATA, needs_data
from scipy.spatial.distance import cdist
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from augment.core.errors import AugmentationError
from augment.text.parsed import ParsedSentence
from finetune.encoders.models import open_model
from finetune.geometry import __main__ as geometry
from finetune.geometry import measures, plots, run
from finetune.geometry.augmentations import AugmentedSentences, compare, pseudo_perplexity, views
from finetune.geometry.projector import write_projector
from finetune.results import read
from pretrain.common.errors import UserError

WORDS = ["man", "woman", "dog", "cat", "plays", "eats", "sleeps"]
WORDS += ["guitar", "apple", "river", "slowly", "green", "old", "happy"]


def sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small BERT with its masked-language head and a tokenizer that has [DEL]."""
    tokenizer = make_tokenizer(sentences(200), 120, None, additional_special_tokens=["[DEL]"])
    shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    return save_bert(tmp_path_factory.mktemp("model"), tokenizer, max_position_embeddings=40, **shape)


def letters(texts):
    """A function for an encoder: counts of letters."""
    return np.array([[text.count(letter) for letter in "abcdefghijklm"] for text in texts], np.float32) + 0.01


def test_vectors_of_tokens_are_those_of_text(folder):
    model = open_model(folder, "mean")
    texts = sentences(12)
    augmented = AugmentedSentences(model, texts)
    np.testing.assert_allclose(augmented.vectors, model.encode(texts), atol=1e-6)
    view = augmented.view("del-span")
    # whole words: text and tokens agree
    again = model.encode([augmented.text(view.rows[n]) for n in range(len(texts))])
    np.testing.assert_allclose(view.vectors, again, atol=1e-5)


def test_pseudo_perplexity_is_the_padded_models_loss(folder):
    augmented = AugmentedSentences(open_model(folder, "mean"), sentences(9), seed=5)
    found = augmented.masked_losses(augmented.originals)
    model, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    from augment.core.keys import sequence_keys
    from finetune.geometry.augmentations import MASK_RATE, MASK_ROUNDS
    from pretrain.data.masking import mask_tokens

    expected = np.zeros((9, 2))
    for number in range(MASK_ROUNDS):
        keys = sequence_keys(5, number, np.arange(9), 0, "mask")
        masked = mask_tokens(
            augmented.originals, keys, augmented.vocabulary, rate=MASK_RATE, mask=1.0, random=0.0
        )
        for row in range(9):
            before, after = augmented.originals[row], masked.batch[row]
            hidden = before != after
            assert (after[hidden] == tokenizer.mask_token_id).all()
            with torch.no_grad():
                logits = model(torch.from_numpy(after.astype(np.int64))[None]).logits[0].log_softmax(-1)
            expected[row] += [-logits[hidden, before[hidden]].sum().item(), hidden.sum()]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert pseudo_perplexity(found) == pytest.approx(
        np.exp(expected[:, 0].sum() / expected[:, 1].sum()), rel=1e-5
    )


def test_comparison_of_an_augmentation(folder):
    augmented = AugmentedSentences(open_model(folder, "mean"), sentences(30))
    view = augmented.view("reorder")
    figures = compare(augmented, view)
    which = np.flatnonzero(view.changed)
    before, after = augmented.vectors[which].astype(float), view.vectors[which].astype(float)
    assert figures["changed"] == pytest.approx(100 * len(which) / 30)
    assert figures["cosine"] == pytest.approx(
        1 - np.diagonal(cdist(before, after, "cosine")).mean(), abs=1e-6
    )
    assert figures["cond_hm"] == pytest.approx(
        measures.harmonic_mean(figures["econd_original"], figures["econd_view"])
    )
    assert figures["perplexity_change"] == pytest.approx(
        figures["perplexity_view"] - figures["perplexity_original"]
    )
    unchanged = compare(augmented, augmented.view("none"))
    assert unchanged == {"changed": 0.0}


def test_a_function_has_no_perplexity_and_no_del(capsys):
    augmented = AugmentedSentences(open_model(letters), sentences(15))
    assert not augmented.has_mlm_head
    assert "letters does not run as a masked language model" in augmented.why_no_perplexity
    with pytest.raises(UserError, match="no pseudo-perplexity"):
        augmented.masked_losses(augmented.originals)
    made = views(augmented, ["reorder", "crop:rate=0.5"], required=False)
    assert [view.name for view in made] == ["reorder", "crop:rate=0.5"]
    np.testing.assert_allclose(made[1].vectors, letters([augmented.text(made[1].rows[n]) for n in range(15)]))
    with pytest.raises(AugmentationError, match="did you mean 'reorder'"):
        views(augmented, ["reoder"], required=False)


def test_a_model_without_head_says_so(folder, tmp_path):
    from transformers import AutoModel

    AutoModel.from_pretrained(folder).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    augmented = AugmentedSentences(open_model(tmp_path, "mean"), sentences(5))
    assert "no masked-language head (its config names BertModel)" in augmented.why_no_perplexity


# -- projector ---------------------------------------------------------


def test_projector_files_are_what_tensorboard_reads(tmp_path):
    from google.protobuf import text_format
    from tensorboard.plugins.projector import ProjectorConfig

    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    path = write_projector(
        tmp_path, 'a "name"', vectors, {"text": ["a\tb", "c\nd", ""], "augmentation": ["x", "y", "z"]}
    )
    config = text_format.Parse(path.read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    assert embedding.tensor_name == 'a "name"'
    np.testing.assert_allclose(
        np.loadtxt(tmp_path / embedding.tensor_path, delimiter="\t"), vectors, rtol=1e-6
    )
    rows = [line.split("\t") for line in (tmp_path / embedding.metadata_path).read_text().splitlines()]
    assert rows == [["text", "augmentation"], ["a b", "x"], ["c d", "y"], ["-", "z"]]
    write_projector(tmp_path, "one", vectors, {"label": [1, 2, 3]})
    assert (tmp_path / "metadata.tsv").read_text() == "1\n2\n3\n"
    with pytest.raises(UserError, match="2 entries for 3 vectors"):
        write_projector(tmp_path, "x", vectors, {"label": [1, 2]})


# -- the command -------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """STS-B, one clustering set and NLI triplets, in their own formats, a few rows each."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(5)
    benchmark = root / "SentEval" / "STS" / "STSBenchmark"
    benchmark.mkdir(parents=True)
    texts = sentences(160, seed=2)
    for split, start in (("dev", 0), ("test", 80)):
        pairs = zip(texts[start : start + 80 : 2], texts[start + 1 : start + 80 : 2], strict=True)
        rows = [f"g\tf\t2012\t{n}\t{rng.uniform(0, 5):.3f}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairs)]
        (benchmark / f"sts-{split}.csv").write_text("".join(rows))
    for name, header, rows in (
        ("clustering/stackoverflow.csv", ["text", "label"], [[t, n % 4] for n, t in enumerate(texts[:50])]),
        (
            "NLI/nli_triplets_from_snli.csv",
            ["sent0", "sent1", "hard_neg"],
            [texts[n : n + 3] for n in range(0, 60, 3)],
        ),
    ):
        (root / name).parent.mkdir(exist_ok=True)
        with open(root / name, "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return root


def test_the_command_writes_numbers_figures_and_projector_files(folder, data, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "PLOTTED", 20)
    aug = "reorder;del-span,reorder"
    call(
        geometry.geometry,
        str(folder),
        pooling="mean",
        eval_data=str(data),
        out=str(tmp_path),
        sentences="40",
        aug=aug,
    )
    evaluation = read(tmp_path / "geometry-mean.json")
    assert list(evaluation.tasks) == [
        "alignment",
        "uniformity",
        "isotropy",
        "neighbourhood/stackoverflow",
        "nli",
        "augmentation/reorder",
        "augmentation/del-span,reorder",
        "projection",
    ]
    assert evaluation.complete
    model = open_model(folder, "mean")
    rows = [
        line.split("\t")
        for split in ("test", "dev")
        for line in (data / "SentEval/STS/STSBenchmark" / f"sts-{split}.csv").read_text().splitlines()
    ]
    close = [row for row in rows if float(row[4]) > 4]
    expected = measures.alignment(model.encode([r[5] for r in close]), model.encode([r[6] for r in close]))
    assert evaluation.tasks["alignment"].value == pytest.approx(expected)
    assert evaluation.tasks["alignment"].details["pairs"] == len(close)
    points = evaluation.tasks["projection"].details
    assert set(points["pca"]) == set(points["tsne"]) == {"original", "reorder", "del-span,reorder"}
    assert len(points["pca"]["original"]) == 20
    names = {path.name for path in (tmp_path / "geometry-mean").iterdir()}
    assert {"pca.png", "tsne.png", "nli_distances.png", "alignment_uniformity.png"} <= names
    assert "neighbourhood_purity_stackoverflow.png" in names
    tensors = (tmp_path / "geometry-mean" / "projector" / "tensors.tsv").read_text().splitlines()
    assert len(tensors) == sum(map(len, points["pca"].values()))


def test_augmentations_of_text_are_measured_from_a_parse(folder, data, tmp_path, monkeypatch):
    texts = [
        f"the {one} eats {number} old apple{'s' if number > 1 else ''}"
        for one in WORDS[:4]
        for number in (1, 2, 3)
    ]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    asked = []

    def parse(sentences, parser):
        asked.append((list(sentences), parser))
        return (unparsed(text) for text in sentences)

    monkeypatch.setattr(geometry, "parse_texts", parse)
    where = {
        "pooling": "mean",
        "eval_data": str(data),
        "out": str(tmp_path),
        "text": str(tmp_path / "texts.txt"),
    }
    call(
        geometry.geometry,
        str(folder),
        **where,
        measure="augmentation",
        aug="number-words; reorder",
        parser="mine",
    )
    assert asked == [(texts, "mine")]
    tasks = read(tmp_path / "geometry-mean.json").tasks
    model = open_model(folder, "mean")
    pairs = [(text, text.replace("1", "one").replace("2", "two").replace("3", "three")) for text in texts]
    before, after = (model.encode(side) for side in zip(*pairs))
    found = tasks["augmentation/number-words"].scores
    assert found["changed"] == 100
    assert found["cosine"] == pytest.approx(
        float(1 - measures.pair_distances(before, after).mean()), abs=1e-6
    )
    assert found["gromov_hausdorff"] == pytest.approx(measures.gromov_hausdorff(before, after), abs=1e-6)
    assert set(tasks["projection"].details["tsne"]) == {"original", "number-words", "reorder"}
    # of tokens: nothing is parsed
    call(geometry.geometry, str(folder), **where, measure="augmentation", aug="reorder")
    assert len(asked) == 1


def test_more_sentences_than_one_measure_takes_are_measured_by_the_others(
    folder, data, tmp_path, monkeypatch
):
    texts = [f"the {one} eats {number} old apples" for one in WORDS[:6] for number in (2, 3, 4, 5)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    monkeypatch.setattr(measures, "AS_CODED_LIMIT", 7)
    flags = {
        "measure": "augmentation",
        "aug": "reorder",
        "sentences": "20000",
        "text": str(tmp_path / "texts.txt"),
    }
    call(geometry.geometry, str(folder), pooling="mean", eval_data=str(data), out=str(tmp_path), **flags)
    found = read(tmp_path / "geometry-mean.json")
    task = found.tasks["augmentation/reorder"]
    assert task.details["sentences"] > 7 and {"gromov_hausdorff", "gromov_hausdorff_as_coded"} <= set(
        task.scores
    )
    assert any(
        "gromov_hausdorff_as_coded: over 7 of the sentences that change" in note for note in found.notes
    )


def unparsed(text):
    """Words between blanks, all of one kind."""
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
    words = text.split(" ")
    ends = tuple(start + len(word) for start, word in zip(starts, words))
    same = [("X",) * len(words) for _ in range(2)]
    heads = (0,) * len(words)
    return ParsedSentence(
        text, tuple(starts), ends, *same, tuple(words), heads, ("ROOT", *("dep",) * (len(words) - 1))
    )


def test_neighbourhoods_of_intents(data, tmp_path):
    rng = np.random.default_rng(1)
    for part, rows in (("train", 24), ("valid", 9), ("test", 12)):
        folder = tmp_path / "intents" / "SNIPS" / part
        folder.mkdir(parents=True)
        texts = [" ".join(rng.choice(list("abc" if n % 3 else "klm"), 5)) for n in range(rows)]
        names = [f"class{n % 3}" for n in range(rows - 1)] + ["unseen" if part == "test" else "class0"]
        for file, lines in (("seq.in", texts), ("label", names)):
            (folder / file).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "clustering").symlink_to(data / "clustering")
    model = tmp_path / "letters_of_intents.py"
    body = "return np.array([[t.count(c) for c in 'abcklm'] for t in texts], float) + 0.01"
    model.write_text(f"import numpy as np\ndef embed(texts):\n    {body}\n")
    flags = {"measure": "neighbourhood", "neighbours": "stackoverflow,snips", "out": str(tmp_path / "out")}
    call(geometry.geometry, f"{model}:embed", eval_data=str(tmp_path), **flags)
    task = read(tmp_path / "out" / "geometry-function.json").tasks["neighbourhood/SNIPS"]
    # not the one of an unseen class
    assert (task.details["points"], task.details["classes"]) == (24 + 9 + 11, 3)
    assert task.scores["cosine_purity@1"] > 40
    drawn = {path.name for path in (tmp_path / "out" / "geometry-function").glob("neighbourhood_*")}
    assert drawn == {
        f"neighbourhood_{what}_{name}.png"
        for what in ("purity", "distance")
        for name in ("stackoverflow", "SNIPS")
    }


def test_what_is_missing_is_said_and_an_explicit_wish_is_an_error(data, tmp_path, capsys):
    (tmp_path / "data" / "NLI").mkdir(parents=True)
    (tmp_path / "data" / "NLI" / "nli_triplets_from_snli.csv").write_text(
        (data / "NLI" / "nli_triplets_from_snli.csv").read_text()
    )
    with pytest.raises(UserError, match=r"clustering/stackoverflow\.csv is not there"):
        call(geometry.geometry, "missing", eval_data=str(tmp_path / "data"), measure="neighbourhood")
    module = tmp_path / "letters_model.py"
    lines = (
        "import numpy as np",
        "def embed(texts):",
        "    return np.array([[len(t), t.count('a')] for t in texts], float)",
    )
    module.write_text("\n".join(lines) + "\n")
    call(geometry.geometry, f"{module}:embed", eval_data=str(tmp_path / "data"), out=str(tmp_path / "out"))
    evaluation = read(tmp_path / "out" / "geometry-function.json")
    assert list(evaluation.tasks) == ["nli"]
    assert sum(note.startswith("without ") for note in evaluation.notes) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"measure": "nlii"}, "did you mean 'nli'"),
        ({"sentences": "many"}, "valid integer"),
        ({"text": "nowhere.txt", "measure": "augmentation"}, "no such file"),
        ({"measure": "augmentation", "aug": "del-word;yodaa"}, "did you mean 'yoda'"),
    ],
)
def test_bad_flags_are_one_message(flags, message, data):
    with pytest.raises((UserError, AugmentationError), match=message):
        call(geometry.geometry, "missing", eval_data=str(data), **flags)


def test_damaged_files_are_one_message(tmp_path):
    (tmp_path / "NLI").mkdir()
    (tmp_path / "NLI" / "nli_triplets_from_snli.csv").write_text("sent0,sent1\na,b\n")
    with pytest.raises(UserError, match="must name sent0, sent1 and hard_neg"):
        call(geometry.geometry, "missing", eval_data=str(tmp_path), measure="nli")
    (tmp_path / "NLI" / "nli_triplets_from_snli.csv").write_text("sent0,sent1,hard_neg\na,b,\n")
    with pytest.raises(UserError, match="row 1 lacks a sentence"):
        call(geometry.geometry, "missing", eval_data=str(tmp_path), measure="nli")


def test_figures_in_a_page_follow_its_colour_and_keep_their_ids_apart(tmp_path):
    with plots.style():
        texts = []
        for name in ("first", "second"):
            figure, axis = plots.plt.subplots()
            axis.plot([0, 1], [0, 1])
            axis.set_title("title")
            texts.append(plots.to_svg(figure, name))
    import re
    import xml.etree.ElementTree as ElementTree

    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in texts]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip(texts, ids, strict=True):
        ElementTree.fromstring(text)
        assert "currentColor" in text and "#010203" not in text
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= own


@needs_data("SentEval/STS/STSBenchmark", "NLI", "clustering")
def test_real_files_are_read():
    wanted = ["sts", "nli", "neighbourhood"]
    inputs, missing = run.read_inputs(str(DATA), wanted, True, ["stackoverflow"], "", 10, 0)
    assert not missing
    if "sts" in inputs:
        assert [len(part) for part in inputs["sts"]] == [1379, 1500]
    if "neighbourhood" in inputs:
        texts, labels = inputs["neighbourhood"]["stackoverflow"]
        assert (len(texts), len(set(labels))) == (20000, 20)
