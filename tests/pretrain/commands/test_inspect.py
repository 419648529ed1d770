"""What `clearly inspect` shows is the batch that training takes, and its figures are right."""

import re
import sys

import numpy as np
import pytest
from cache_helpers import make as make_cache
from loader_helpers import make_loader, write_folder

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.commands import inspect as inspection
from pretrain.common import cli
from pretrain.config.recipe import flags
from pretrain.data.batch import ViewSpec
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash, train_tokenizer

VIEWS = [ViewSpec("anchor", "del-span,reorder"), ViewSpec("positive", "del-span,reorder")]
WORDS = ("the", "old", "lamp", "lights", "a", "small", "ship", "at", "night", "while", "rain", "falls", "on")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, random.integers(3, 25))) for _ in range(600)]
    tokenizer = train_tokenizer(iter(texts), "wordpiece", 500)
    save_tokenizer(tokenizer, folder / "tokenizer")
    sequences = Ragged.from_sequences(tokenizer(texts)["input_ids"])
    splits = {"train": sequences, "heldout": sequences.slice(0, 60)}
    hashed = tokenizer_hash(folder / "tokenizer")
    write_folder(folder, splits, len(tokenizer), 64, tokenizer_hash=hashed, chunk_tokens=600)
    return folder


@pytest.fixture
def recipe(tmp_path, folder):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: {{folder: {folder}, lanes: 4}}\nmodel: {{max_positions: 64}}\n"
        "train: {global_batch: 48, steps: 20, warmup_steps: 1}\n"
    )
    return path


def run(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["inspect", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.run(inspection.inspect, keys=flags)
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def training_batch(folder, step: int, rank: int = 0, world_size: int = 1):
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(folder / "tokenizer"))
    loader = make_loader(
        folder,
        vocabulary,
        seed=42,
        lanes=4,
        views=VIEWS,
        rank=rank,
        world_size=world_size,
        start_step=step,
        stop_step=step + 1,
    )
    return next(iter(loader)), vocabulary


def test_shows_what_training_takes(monkeypatch, capsys, folder, recipe):
    code, out, _ = run(
        monkeypatch, capsys, "--config", recipe, "--step", 15, "--rank", 1, "--world-size=2", "--show", 2
    )
    assert code == 0
    batch, _ = training_batch(folder, 15, 1, 2)
    tokenizer = load_tokenizer(folder / "tokenizer")
    assert "step 15, epoch 1 of 12 steps, rank 1 of 2: 24 of 48 sequences" in out
    for row in range(2):
        assert f"sequence {batch.sequence_ids[row]}" in out
        for ids in (
            batch.original[row],
            batch.masked[0].batch[row],
            *(view.tokens[row] for view in batch.views.values()),
        ):
            assert tokenizer.decode(ids.tolist()) in out
        masked = batch.masked[0].slice(row, row + 1)
        for place, label in zip(masked.positions, masked.labels):
            assert f"{place}: {tokenizer.decode([int(label)]).strip()}" in out
    assert f"sequence {batch.sequence_ids[2]}\n" not in out
    before = [row.tolist() for row in batch.original]
    for role, view in batch.views.items():
        differ = np.mean([one.tolist() != other for one, other in zip(view.tokens, before)])
        assert 0 < differ <= 1 and f"{role}: {differ:.1%} differ from the text, 100.0% present" in out
    row = next(line for line in out.splitlines() if line.strip().startswith("view 1 ")).split()
    lengths = batch.views["anchor"].tokens.lengths
    assert row[2:5] == ["anchor", "24", f"{lengths.sum()}"]
    assert row[5:8] == [str(lengths.min()), f"{lengths.mean():.1f}", str(lengths.max())]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_tokens_are_shown_as_the_text_has_them(kind):
    text = ["Jürgens Mutter"] * 9 + ["Jürgen", "🙂"]
    tokenizer = train_tokenizer(text, kind, 320)
    ids = np.array(tokenizer("Jürgens Mutter", add_special_tokens=False)["input_ids"])
    shown = inspection._tokens(ids, tokenizer)
    assert "".join(shown).replace("##", "") == "JürgensMutter"
    if kind == "bpe":  # a byte of a character that the text has too rarely is no text by itself
        parts = inspection._tokens(
            np.array(tokenizer("🙃", add_special_tokens=False)["input_ids"]), tokenizer
        )
        assert len(parts) > 1 and all(part and "\ufffd" not in part for part in parts)


def test_columns_labels_and_what_is_absent(tmp_path, folder):
    """Half the negatives are not there, a third of the texts come twice; labels of the data, or of
    alternatives."""
    tokenizer = load_tokenizer(folder / "tokenizer")
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS, 9)) for _ in range(64)]
    texts = [*texts, *texts[:32]]
    rows = []
    for number, text in enumerate(texts):
        rows += [tokenizer(text)["input_ids"], tokenizer(f"{text} at night")["input_ids"]]
        rows.append(tokenizer("the rain falls")["input_ids"] if number % 2 else [])
    labels = {"train": np.arange(96) % 3}
    arguments = {"columns": ("text", "positive", "negative"), "chunk_tokens": 600, "unit": "record"}
    write_folder(tmp_path / "plain", {"train": Ragged.from_sequences(rows)}, len(tokenizer), 64, **arguments)
    write_folder(
        tmp_path / "labelled",
        {"train": Ragged.from_sequences(rows)},
        len(tokenizer),
        64,
        labels=labels,
        **arguments,
    )
    views = [
        ViewSpec("anchor", "none"),
        ViewSpec("positive", "crop|reorder", labelled=True),
        ViewSpec("negative", "none"),
    ]
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    for name in ("plain", "labelled"):
        reader = ShardReader(tmp_path / name)
        names = inspection.names_of_labels(views, reader)
        loader = make_loader(
            tmp_path / name, vocabulary, seed=0, global_batch=96, lanes=1, views=views, copies=0, stop_step=1
        )
        batch = next(iter(loader))
        row = int(np.flatnonzero(~batch.views["negative"].present)[0])
        sequence = inspection.sequence_lines(batch, row, tokenizer, views, names)
        assert (
            sequence[2].startswith("  view 1 anchor")
            and sequence[1].split("  ")[-1] == sequence[2].split("  ")[-1]
        )
        assert sequence[4].split() == ["label", names[batch.labels[row]]]
        assert (
            sequence[5].startswith("  view 3 negative")
            and sequence[6].strip() == "absent  the text fills its place"
        )
    assert (
        inspection.described(ShardReader(tmp_path / "labelled"))
        == "records (text, positive, negative; 3 labels)"
    )
    assert inspection.described(ShardReader(folder)) == "sequences (unit sentence)"


def test_views_that_are_to_be_made_once_are_made_by_a_run(monkeypatch, capsys, folder, recipe):
    flags = ["--objective.name", "simcse", "--augment.positive", "reorder", "--data.cache", 1]
    code, _, said = run(monkeypatch, capsys, "--config", recipe, *flags)
    assert code and "the views of data.cache=1" in said and "--data.cache 0" in said


def test_labels_of_a_cache_have_the_names_of_its_manifest(monkeypatch, capsys, folder, recipe, tmp_path):
    manifest = make_cache(
        folder, tmp_path / "cached", {"augmented": "crop:rate=0.5|del-word|reorder"}, progress=False
    )
    flags = [
        "--objective.name",
        "augcse",
        "--data",
        tmp_path / "cached",
        "--aug",
        "none",
        "--augment.augmented",
        "none",
    ]
    code, out, _ = run(monkeypatch, capsys, "--config", recipe, *flags, "--show", 8)
    assert code == 0 and manifest["labels"] == 4
    for name in ("crop:rate=0.5", "del-word", "reorder", "none"):
        assert re.search(rf"labels: .*\d% {name}(,|$)", out, re.MULTILINE)
    shown = re.findall(r"^\s+label  (.*)$", out, re.MULTILINE)
    assert len(shown) == 8 and {*shown} <= {*manifest["label_names"]}


def test_objectives_without_views_and_the_heldout_split(monkeypatch, capsys, recipe):
    code, out, _ = run(
        monkeypatch, capsys, "--config", recipe, "--objective.name", "mlm", "--split", "heldout"
    )
    assert code == 0 and "view 1" not in out and "masked 1" in out and "/heldout: 60 sequences" in out


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--step", "-1"], "--step: Input should be greater than or equal to 0"),
        (["--world-size", "0"], "--world-size: Input should be greater than or equal to 1"),
        (["--rank", "2", "--world-size", "2"], "ranks count from 0 to 1"),
        (["--aug", "del-spam"], "did you mean 'del-span'"),
        (["--train.global_bach", "4"], "did you mean --train.global-batch?"),
        (["--world-size", "5"], "data.lanes=4: start at most 4 ranks"),
        (["--train.global_batch", "800"], "there are only 600 sequences"),
        (
            ["--model.max_positions", "32"],
            "raise model.max_positions, or prepare the data with max_length 32",
        ),
        (["--split", "test"], "--split: Input should be 'train' or 'heldout'"),
        (["--data", "/nowhere"], "clearly prepare"),
        (["--aug", "subs", "--augment.synonyms", "/nowhere"], "/nowhere"),
    ],
)
def test_mistakes_are_one_message(monkeypatch, capsys, recipe, flags, words):
    code, out, err = run(monkeypatch, capsys, "--config", recipe, *flags)
    assert code == 2 and words in err and "Traceback" not in err and out == ""


def test_help(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0 and "--step" in out
