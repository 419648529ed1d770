"""Vectors that are kept: what comes back is what the encoder gave, or it is encoded again."""

import os
import random
import shutil
import signal
import time
from itertools import product

import numpy as np
import pytest
import torch
from forked_python import ForkedPython
from model_folders import SENTENCES, make_tokenizer, save_bert, save_run
from run_helpers import paths_in, wait_for
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from finetune.encoders import kept_vectors
from finetune.encoders.kept_vectors import KeptVectors, digest_of, file_content, read_file, remove_oldest
from finetune.encoders.models import KEPT_VECTORS, open_model, with_kept_vectors
from finetune.encoders.source import ModelSource
from pretrain.common.errors import UserError

WORDS = [word for sentence in SENTENCES for word in sentence.split()]


def texts_of(seed: int, count: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(0, 12))) for _ in range(count)]


class Counting:
    """An encoder whose vector is a function of the text, and which remembers what it was asked."""

    def __init__(self, width: int = 3):
        self.width, self.asked = width, []

    def __call__(self, texts, poolings):
        self.asked += texts
        seeds = [[len(text), *text.encode("utf-8", "surrogatepass")] for text in texts]
        rows = [np.random.default_rng(seed).random(self.width) for seed in seeds]
        made = np.array(rows, np.float32).reshape(len(texts), self.width)
        return {pooling: made + len(pooling) for pooling in poolings}


def kept(root, encode, texts, poolings=("cls",), **circumstances):
    return KeptVectors(root, circumstances).vectors(texts, list(poolings), encode)


@pytest.mark.parametrize("seed", range(5))
def test_every_text_is_encoded_once_whatever_is_asked(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(kept_vectors, "CHUNK", 7)
    encode, texts = Counting(), [*dict.fromkeys(texts_of(seed, 60)), "\ud800", "日本"]
    chosen = random.Random(seed)
    opened = KeptVectors(tmp_path, {})
    for turn in range(8):
        asked = chosen.choices(texts, k=chosen.randint(0, 40))  # any order, with repeats
        poolings = chosen.sample(["cls", "mean", "first-last"], k=2)
        if turn % 3 == 2:
            opened = KeptVectors(tmp_path, {})  # a later process
        found, expected = opened.vectors(asked, poolings, encode), Counting()(asked, poolings)
        for pooling in poolings:
            np.testing.assert_array_equal(found[pooling], expected[pooling])
    encode.asked.clear()
    kept(tmp_path / "other", encode, texts)
    kept(tmp_path / "other", encode, texts[::-1] * 2)
    assert sorted(encode.asked) == sorted(texts)


def test_texts_of_one_file_are_found_one_after_another(tmp_path):
    encode, texts = Counting(), ["one", "two", "three"]
    kept(tmp_path, encode, texts)
    later = KeptVectors(tmp_path, {})
    for text in texts:
        later.vectors([text], ["cls"], encode)
    assert encode.asked == texts


def test_a_damaged_file_is_never_read(tmp_path):
    names, vectors = [bytes([n]) * 16 for n in range(3)], np.arange(6, dtype=np.float32).reshape(3, 2)
    content, path = file_content(names, vectors), tmp_path / "a.vectors"
    path.write_bytes(content)
    read = read_file(path)
    assert read is not None and read[0] == names and (read[1] == vectors).all()
    for length in range(len(content)):  # torn anywhere
        path.write_bytes(content[:length])
        assert read_file(path) is None
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert read_file(path) is None
    path.write_bytes(content + b"0")
    assert read_file(path) is None and read_file(tmp_path / "gone.vectors") is None


def test_what_is_damaged_is_said_and_encoded_again_as_what_is_removed(tmp_path, capsys):
    encode, texts = Counting(), ["one", "two"]
    opened = KeptVectors(tmp_path, {})
    first = opened.vectors(texts, ["cls"], encode)["cls"]
    (path,) = tmp_path.glob("*/*.vectors")
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(opened.vectors(texts, ["cls"], encode)["cls"], first)
    assert encode.asked == texts * 2
    assert f"note: {path} was damaged" in capsys.readouterr().err
    opened.vectors(texts, ["cls"], encode)
    assert "damaged" not in capsys.readouterr().err and len(list(tmp_path.glob("*/*.vectors"))) == 1
    for file in tmp_path.glob("*/*.vectors"):
        file.unlink()
    np.testing.assert_array_equal(opened.vectors(texts, ["cls"], encode)["cls"], first)
    assert encode.asked == texts * 3


WRITER = """
import sys
from pathlib import Path
import numpy as np
from finetune.encoders import kept_vectors
kept_vectors.CHUNK = 5
def encode(texts, poolings):
    print(len(texts), flush=True)
    return {name: np.array([[int(text)] * 400 for text in texts], np.float32) for name in poolings}
kept = kept_vectors.KeptVectors(Path(sys.argv[1]), {})
found = kept.vectors([str(n) for n in range(int(sys.argv[2]))], ["cls"], encode)["cls"]
assert (found == np.arange(int(sys.argv[2]))[:, None]).all()
"""


@pytest.mark.full
def test_processes_may_share_a_folder_and_be_killed(tmp_path):
    def start(count):
        return ForkedPython(["-c", WRITER, str(tmp_path), str(count)], dict(os.environ), stderr=None)

    killed = start(100_000)
    assert killed.stdout is not None and killed.stdout.readline()
    wait_for(lambda: len(paths_in(tmp_path, "*/*.vectors")) >= 5, [killed], pause=0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    there = len(list(tmp_path.glob("*/*.vectors")))
    for path in tmp_path.glob("*/*.vectors"):
        read = read_file(path)
        assert read is not None and len(read[0]) == 5
    two = [start(1000) for _ in range(2)]
    encoded = [sum(map(int, one.communicate()[0].split())) for one in two]
    assert [one.returncode for one in two] == [0, 0]
    assert there >= 5 and 900 <= sum(encoded) <= 2000
    third = start(1000)
    assert third.communicate()[0] == "" and third.returncode == 0


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    return save_run(save_bert(folder / "bert"), folder / "mine", "mean")


def folders_of(model, root, monkeypatch, **settings):
    """Encode with vectors kept, check them, and return the names of the folders that there are then."""
    monkeypatch.delenv(KEPT_VECTORS, raising=False)
    plain = open_model(model, **settings).encode(SENTENCES)
    monkeypatch.setenv(KEPT_VECTORS, str(root))
    for _ in range(2):
        np.testing.assert_allclose(open_model(model, **settings).encode(SENTENCES), plain, atol=1e-6)
    return {path.name for path in root.iterdir()}


@pytest.mark.full
def test_nothing_is_served_of_other_weights_or_settings(run_folder, tmp_path, monkeypatch):
    root, copy = tmp_path / "root", tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    counts = [len(folders_of(run_folder, root, monkeypatch))]
    assert len(folders_of(copy, root, monkeypatch)) == 1  # the same files elsewhere
    for settings in ({"pooling": "cls"}, {"precision": "bf16"}, {"max_length": 5}):
        counts.append(len(folders_of(run_folder, root, monkeypatch, **settings)))
    weights = copy / "export" / "model.safetensors"
    before, tensors = weights.stat(), load_file(weights)
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, weights, {"format": "pt"})
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same name, size and time
    assert weights.stat().st_size == before.st_size
    counts.append(len(folders_of(copy, root, monkeypatch)))
    make_tokenizer(WORDS[::-1], size=60).save_pretrained(copy / "export")
    counts.append(len(folders_of(copy, root, monkeypatch)))
    assert counts == [1, 2, 3, 4, 5, 6]


def test_weights_precision_length_and_pooling_have_a_folder_of_their_own(run_folder, tmp_path):
    copy = shutil.copytree(run_folder, tmp_path / "copy")

    def folders() -> set:
        source = open_model(copy).source
        made = [KeptVectors.of(source, tmp_path, *how) for how in product(("fp32", "bf16"), (None, 5, 6))]
        return {one.folder(pooling) for one in made for pooling in ("cls", "mean")}

    before, weights = folders(), copy / "export" / "model.safetensors"
    assert len(before) == 12 and folders() == before
    times, content = weights.stat(), weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(folders() | before) == 24


def test_nothing_is_served_of_another_prompt(run_folder, tmp_path, monkeypatch):
    folder, root = tmp_path / "prompted", tmp_path / "root"
    transformer = Transformer(str(run_folder / "export"))
    model = SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
    model.save(str(folder))
    assert len(folders_of(folder, root, monkeypatch)) == 1
    model.prompts, model.default_prompt_name = {"query": "the cat "}, "query"
    model.save(str(folder))
    assert len(folders_of(folder, root, monkeypatch)) == 2


def test_several_poolings_share_what_single_ones_kept(run_folder, tmp_path, monkeypatch):
    monkeypatch.setenv(KEPT_VECTORS, str(tmp_path))
    single = {name: open_model(run_folder, name).encode(SENTENCES) for name in ("cls", "mean")}
    opened = open_model(run_folder)
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.Embedding, "forward", None)  # the encoder must not run
        several = opened.encode_poolings(SENTENCES, ["cls", "mean"])
    for name, vectors in single.items():
        np.testing.assert_array_equal(several[name], vectors)


@pytest.mark.full
def test_vectors_do_not_depend_on_the_batch(run_folder, tmp_path, monkeypatch):
    texts = texts_of(0, 300)
    expected = open_model(run_folder).encode(texts)
    for number, (budget, chunk) in enumerate([(1, 3), (64, 50), (10**6, 299)]):
        monkeypatch.setattr(kept_vectors, "CHUNK", chunk)
        monkeypatch.setenv(KEPT_VECTORS, str(tmp_path / str(number)))
        for part in (texts[100:], texts):  # partly there
            found = open_model(run_folder, token_budget=budget).encode(part)
            np.testing.assert_allclose(found, expected[-len(part) :], atol=1e-6)


def test_what_is_not_kept(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(KEPT_VECTORS, str(tmp_path / "root"))
    opened = open_model(lambda texts: np.ones((len(texts), 2)))
    assert opened.encode(["a"]).shape == (1, 2) and not (tmp_path / "root").exists()
    with_kept_vectors(open_model(run_folder), tmp_path / "root", "what it was before")
    assert "its weights changed while they were read" in capsys.readouterr().err
    infinite = lambda texts, _: {"cls": np.full((len(texts), 2), np.inf)}  # noqa: E731
    kept(tmp_path, infinite, ["a"])
    assert not list(tmp_path.rglob("*.vectors"))
    (tmp_path / "file").touch()
    assert kept(tmp_path / "file", Counting(), ["a"])["cls"].shape == (1, 3)
    assert "vectors are not kept: " in capsys.readouterr().err
    with pytest.raises(UserError, match="one string was given"):
        open_model(run_folder).encode("a storm")


def test_what_was_used_least_recently_is_removed_first(tmp_path):
    encode = Counting()
    for number, text in enumerate("abc"):
        kept(tmp_path, encode, [text])
        for path in tmp_path.glob("*/*.vectors"):
            if read_file(path)[0] == [kept_vectors._digest(text)]:
                os.utime(path, (number, number))
    kept(tmp_path, encode, ["a"])  # used again
    old = next(tmp_path.glob("*")) / ".x.vectors.1.partial"
    old.write_bytes(b"torn")
    os.utime(old, (0, 0))
    size = next(tmp_path.glob("*/*.vectors")).stat().st_size
    assert remove_oldest(tmp_path, 3 * size) == 0 and not old.exists()
    assert remove_oldest(tmp_path, 2 * size) == 1
    kept(tmp_path, encode, ["a", "c"])
    assert encode.asked == ["a", "b", "c"]
    assert remove_oldest(tmp_path, 0) == 2 and remove_oldest(tmp_path / "none", 0) == 0


def test_the_digest_is_of_all_files_that_vectors_follow_from(tmp_path, monkeypatch):
    source, folder = ModelSource("m", str(tmp_path / "m")), tmp_path / "m"
    (folder / "1_Pooling").mkdir(parents=True)
    read = ["a.safetensors", "b.bin", "c.json", "d.txt", "e.model", "f.tiktoken", "1_Pooling/config.json"]
    others = ["README.md", "code.py", "checkpoint-7/a.safetensors", "checkpoint"]
    (folder / "checkpoint-7").mkdir()
    for name in (*read, *others):
        (folder / name).write_text(name)
    found = {None: digest_of(source)}
    for name in (*read, *others):
        (folder / name).write_text("other")
        found[name] = digest_of(source)
        (folder / name).write_text(name)
        assert (found[name] == found[None]) is (name in others), name
    assert len(set(found.values())) == len(read) + 1
    (folder / "d.txt").rename(folder / "g.txt")
    assert digest_of(source) not in found.values()
    # of a name of the hub those of the cache, if it has them
    monkeypatch.setattr(kept_vectors, "cached_folder", {"owner/name": folder}.get)
    assert digest_of(ModelSource("owner/name", "owner/name")) == digest_of(source)
    assert digest_of(ModelSource("x", "owner/other")) is None
    assert KeptVectors.of(ModelSource("x", "owner/other"), tmp_path, "fp32", None) is None


def test_other_versions_and_devices_have_folders_of_their_own(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    source = ModelSource("m", str(tmp_path / "model"))
    folders = {KeptVectors.of(source, tmp_path, "fp32", None).folder("cls")}
    other_device = not torch.cuda.is_available()
    for name, value in (
        ("torch.__version__", "0"),
        ("transformers.__version__", "0"),
        ("torch.cuda.is_available", lambda: other_device),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(name, value)
            folders.add(KeptVectors.of(source, tmp_path, "fp32", None).folder("cls"))
    assert len(folders) == 4


def test_progress_is_said_and_short_texts_come_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept_vectors, "CHUNK", 2)
    monkeypatch.setattr(kept_vectors, "SECONDS_BETWEEN_LINES", -1.0)
    encode = Counting()
    texts = ["four", "a", "three words here", "bb", "a", "ccc"]
    kept(tmp_path, encode, texts)
    assert encode.asked == ["a", "bb", "ccc", "four", "three words here"]
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" texts")[0] for line in said[:-1]] == ["2 of 5", "4 of 5", "5 of 5"]
    assert said[-1].startswith("vectors of 5 texts: 0 kept from before, 5 encoded in ")
    monkeypatch.setattr(kept_vectors, "SECONDS_BETWEEN_LINES", 30.0)
    kept(tmp_path, encode, [*texts, "new"])
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("vectors of 6 texts: 5 kept from before, 1 encoded in ")
    assert kept(tmp_path, encode, [])["cls"].shape == (0, 3)


def test_what_is_being_written_stays_and_no_more_than_needed_is_removed(tmp_path):
    encode = Counting()
    for text in "abc":
        kept(tmp_path, encode, [text])
    folder = next(tmp_path.iterdir())
    files = sorted(folder.iterdir())
    for age, name in ((3500, ".young.vectors.1.partial"), (3700, ".old.vectors.1.partial")):
        (folder / name).write_bytes(b"torn")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    (folder / "notes.txt").write_bytes(b"of somebody else")
    for number, path in enumerate(files):
        os.utime(path, (1000 + number, 1000 + number))
    size = files[0].stat().st_size
    assert remove_oldest(tmp_path, 2 * size + 1) == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*(path.name for path in files[1:]), ".young.vectors.1.partial", "notes.txt"]
    )


def test_vectors_of_a_model_without_files_are_not_kept(run_folder, tmp_path, monkeypatch, capsys):
    opened = open_model(run_folder)
    monkeypatch.setattr(KeptVectors, "of", lambda *_: None)
    assert with_kept_vectors(opened, tmp_path, opened.identity).kept_vectors is None
    assert "are not kept: it has no files to know it by" in capsys.readouterr().err
