"""`clearly search`: what is found is what cosines say, and an index is used again."""

import bz2
import gzip
import json
import lzma
import textwrap
from pathlib import Path

import numpy as np
import pytest
import zstandard
from commands import call
from model_folders import save_bert
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from finetune import search as command
from finetune.encoders.models import open_model
from finetune.search import nearest
from finetune.texts import read_lines
from pretrain.benchmarks.files import read_queries, read_sentences
from pretrain.common.errors import UserError

SENTENCES = [
    f"the {animal} {does} in the {place}"
    for animal in ("dog", "cat", "bird")
    for does in ("runs", "sleeps", "eats")
    for place in ("garden", "house")
]


def random_vectors(sentences):
    """A vector a sentence, the same wherever it stands."""
    seeds = [sum(map(ord, sentence)) * 31 + len(sentence) for sentence in sentences]
    return np.stack([np.random.default_rng(seed).normal(size=16) for seed in seeds]).astype(np.float32)


@pytest.mark.parametrize("at_once", [command._COSINES_AT_ONCE, 40])
def test_the_nearest_are_those_of_the_largest_cosines(monkeypatch, at_once):
    monkeypatch.setattr(command, "_COSINES_AT_ONCE", at_once)
    # equal vectors may be rounded differently in products of other sizes
    sentences = SENTENCES if at_once == 40 else [*SENTENCES, SENTENCES[2]]
    vectors, queries = (
        random_vectors(sentences),
        random_vectors(["a query", SENTENCES[2], "others", "a last"]),
    )
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, vectors)]
    cosines = unit[0] @ unit[1].T
    for count in (3, 99):
        for hits, own in zip(nearest(vectors, sentences, queries, count), cosines):
            places = np.argsort(-own, kind="stable")[:count]
            assert [hit.place for hit in hits] == places.tolist()
            assert [hit.sentence for hit in hits] == [sentences[place] for place in places]
            assert [hit.cosine for hit in hits] == pytest.approx(own[places], abs=1e-6)


def test_a_models_prompts_stand_before_queries_and_before_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modules = [Transformer(str(save_bert(tmp_path / "bert"))), Pooling(32)]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.prompts = {"query": "the cat ", "document": "a bird in the house "}
    model.save("model")
    Path("text.txt").write_text("\n".join(SENTENCES))
    call(
        command.search, "model", "dog eats", "--text", "text.txt", "--top", len(SENTENCES), "--out", "f.json"
    )
    (hits,) = json.loads(Path("f.json").read_text())["found"].values()
    cosines = model.similarity(model.encode_document(SENTENCES), model.encode_query(["dog eats"])).flatten()
    assert [hit["cosine"] for hit in hits] == pytest.approx(
        cosines[[hit["place"] for hit in hits]].tolist(), abs=1e-5
    )


def test_the_command_finds_a_sentence_by_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = save_bert(tmp_path / "model")
    Path("text.txt").write_text("\n".join(SENTENCES))
    Path("queries.txt").write_text(f"{SENTENCES[3]}\n\n{SENTENCES[7]}\n")
    words = [str(model), "--text", "text.txt", "--pooling", "mean"]
    call(command.search, *words, SENTENCES[5])
    first = capsys.readouterr().out.splitlines()[-6:]  # behind what libraries print
    assert first[0] == SENTENCES[5] and first[1].split(maxsplit=1) == ["1.000", SENTENCES[5]]
    for top in ("1", "2"):  # the file is replaced
        call(command.search, *words, "--queries", "queries.txt", "--top", top, "--out", "new/found.jsonl")
    rows = [json.loads(line) for line in Path("new/found.jsonl").read_text().splitlines()]
    assert [row["query"] for row in rows] == [SENTENCES[3], SENTENCES[7]]
    for row in rows:
        (hits,) = row["found"].values()
        assert hits[0]["sentence"] == row["query"] and len(hits) == 2
    call(command.search, *words, SENTENCES[5], "--beside", str(model))
    assert capsys.readouterr().out.count("1.000") >= 2
    Path("text.txt").write_text("\n".join([*SENTENCES[:5], "one more", *SENTENCES[5:]]))
    call(command.search, *words, SENTENCES[5], "--top", "1")
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].endswith(SENTENCES[5])
    assert "18 kept from before, 1 encoded" in said.err


def test_lines_that_are_cut_are_counted_once_and_a_split_finds_their_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = save_bert(tmp_path / "model")
    documents = [" ".join(f"{one[0].upper()}{one[1:]}." for one in SENTENCES), *SENTENCES]
    Path("my").mkdir()
    Path("my/text.txt").write_text("\n".join(documents))
    Path("my/one.jsonl").write_text(json.dumps({"text": documents[0]}))
    longest = open_model(model, "mean").longest
    words = [str(model), "--pooling", "mean", "--top", "1"]
    for _ in range(2):  # the second time from the kept index
        call(command.search, *words, "--text", "my/text.txt", SENTENCES[-1])
        note = (
            f"note: 1 of 19 lines are longer than {longest} tokens, at which {model} cuts them: their ends "
        )
        note += "are not searched; --split splits lines into sentences\n"
        assert capsys.readouterr().err.count(note) == 1
    for text in ("my/text.txt", "my/one.jsonl", "my", "my/one.jsonl,my/text.txt"):
        call(command.search, *words, "--text", text, "--split", "The bird eats in the house.")
        said = capsys.readouterr()
        assert "are longer than" not in said.err
        assert said.out.splitlines()[-1].endswith("The bird eats in the house.")


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("gz", gzip.compress), ("zst", zstandard.compress), ("bz2", bz2.compress), ("xz", lzma.compress)],
)
def test_what_is_compressed_is_read_and_damage_is_named(tmp_path, ending, pack):
    path = tmp_path / f"text.txt.{ending}"
    data = pack("\n".join(SENTENCES).encode())
    path.write_bytes(data)
    assert read_sentences(path, "text") == SENTENCES
    path.write_bytes(data[:-9])
    with pytest.raises(UserError, match=r"--text: source .*text\.txt\.\w+ is cut short or damaged"):
        read_sentences(path, "text")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["folder"], "--text folder is no file of sentences, one per line: add --split, which reads"),
        (["rows.jsonl.zst"], "--text rows.jsonl.zst is no file of sentences, one per line: add --split"),
        (["rows.zip"], "--text rows.zip is no file of sentences, one per line: add --split"),
        (
            ["prepared", "--split"],
            "--text prepared is prepared data, which holds no text: name",
        ),
        (["prepared"], "--text prepared is prepared data, which holds no text: name"),
        (["nowhere.txt", "--split"], "--text nowhere.txt: source nowhere.txt: no such file, folder or glob"),
        (["nowhere.txt"], "--text nowhere.txt: there is no such file"),
        (["https://x.org/a.txt"], "--text https://x.org/a.txt: there is no such file"),
        (["https://x.org/a.txt", "--split"], "source https://x.org/a.txt is an address: download it"),
        ([",".join(["nowhere.txt"] * 30)], "nowhere.txt: there is no such file"),
        ([",".join(["nowhere.txt"] * 30), "--split"], "source nowhere.txt: no such file, folder or glob"),
        (["[{source: bodies.jsonl", "--split"], "--text is not YAML"),
        (["bodies.jsonl", "--split"], """--text '[{source: "bodies.jsonl", text_key: FIELD}]'"""),
    ],
)
def test_a_text_of_another_form_is_one_message(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "prepared"):
        Path(folder).mkdir()
    for file in ("rows.jsonl.zst", "rows.zip", "prepared/manifest.json"):
        Path(file).touch()
    Path("bodies.jsonl").write_text('{"body": "A text."}\n')
    with pytest.raises(UserError) as raised:
        call(command.search, "model", "a query", "--text", *words)
    assert said in str(raised.value) and "--source" not in str(raised.value)


def test_a_split_reads_sources_and_says_what_it_cannot_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ['{"body": "A dog runs. A cat sleeps."}', '{"body": 7}', "no JSON", '{"body": "A bird eats."}']
    Path("b.jsonl").write_text("\n".join(rows))
    Path("a.txt").write_text("A horse drinks.\n")
    found = command.read_split("[{source: b.jsonl, text_key: body}, a.txt]")
    assert found == ["A dog runs.", "A cat sleeps.", "A bird eats.", "A horse drinks."]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "note: 2 broken records" and len(said) == 3
    assert said[1].endswith("b.jsonl, line 2: field 'body' holds no text, but '7'")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "give a query"),
        (["x", "--queries", "latin.txt"], "give a query"),
        (["--queries", "nowhere.txt"], "there is no such file"),
        (["--queries", "."], "--queries . is a folder: name one file"),
        (["--queries", "empty.txt"], "holds no query"),
        (["--queries", "latin.txt"], r"--queries latin\.txt is not UTF-8 text \(line 2\), perhaps CP1252"),
    ],
)
def test_what_cannot_be_searched_is_one_message(tmp_path, monkeypatch, more, said):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(SENTENCES))
    Path("empty.txt").write_text("\n\n")
    Path("latin.txt").write_bytes("a cat\n„wo schläft sie?“\n".encode("cp1252"))
    with pytest.raises(UserError, match=said):
        call(command.search, "model", "--text", "text.txt", *more)


def test_lines_of_hard_wrapped_text_are_called_fragments(tmp_path, capsys):
    story = (
        "He climbed the stairs at dusk, as he had done for thirty years, and saw the lamp of the harbour. "
    )
    story += "Nobody in the village remembered another keeper, and few had ever seen the light that he lit."
    wrapped = "\n\n".join(textwrap.fill(f"{one}. {story} {one}.", 60) for one in SENTENCES)
    for name, text, said in (("a.txt", wrapped, True), ("b.txt", "\n".join([*SENTENCES, story]), False)):
        for path, data in (
            (tmp_path / name, text.encode()),
            (tmp_path / f"{name}.gz", gzip.compress(text.encode())),
        ):
            path.write_bytes(data)
            assert read_lines(str(path)) == read_sentences(path, "text")
            err = capsys.readouterr().err
            assert err.count(f"note: {path} is hard-wrapped at column 60, and each line is searched") == said
            assert err.count("--split joins") == said


def test_sentences_and_queries_are_read_alike_plain_or_packed(tmp_path):
    text = "\ufeffa \u2028 cat\r\n\n  a dog\x0c sleeps \n".encode()
    for name, data in (("a.txt", text), ("a.txt.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(data)
        assert read_queries(tmp_path / name) == ["a \u2028 cat", "a dog\x0c sleeps"]
        (tmp_path / name).write_bytes(data[:-9])
    with pytest.raises(UserError, match=r"--queries: source .*a\.txt\.gz is cut short or damaged"):
        read_queries(tmp_path / "a.txt.gz")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("schläft".encode("utf-16")))
    for name in ("a.csv", "a.tsv", "a.jsonl.gz"):
        (tmp_path / name).write_text("text\none sentence\n" * 10)
        with pytest.raises(UserError, match="one per line"):
            read_sentences(tmp_path / name, "text")
    with pytest.raises(UserError, match=r"gzip -dc \S+b\.txt\.gz \| iconv -f UTF-16 .*>\S+/b-utf8\.txt$"):
        read_sentences(tmp_path / "b.txt.gz", "text")
