"""The split of a user's text: by document, the same again, without copies across it."""

import difflib
import itertools
import json
import random
import textwrap
from pathlib import Path

import numpy as np
import pytest

from finetune.judge import heldout as heldout_module
from finetune.judge.heldout import (
    FEWEST,
    HALVES,
    MOST_QUERIES,
    _but_one,
    _halves,
    documents_of,
    is_copy,
    make_sets,
    make_test,
    shingles,
    training_sources,
)
from finetune.judge.parts import GAP
from finetune.nanobeir import FOLDER, read
from finetune.search import read_split
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structure import Document
from pretrain.prepare.sources.structured import structured

WORDS = [f"word{number}" for number in range(300)]


def written(path, count=400, seed=0):
    """Rows of a title and a text, all different; the last third repeats texts of the first with a new end."""
    draw = random.Random(seed)
    rows = [
        {"title": " ".join(draw.choices(WORDS, k=4)), "text": " ".join(draw.choices(WORDS, k=40)) + "."}
        for _ in range(count)
    ]
    copies = [
        {"title": f"again {row['title']}", "text": f"{row['text']} The end."} for row in rows[: count // 3]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows + copies))
    return rows, copies


def test_nothing_held_out_is_trained_on_nor_are_its_copies(tmp_path):
    rows, copies = written(tmp_path / "mine.jsonl")
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    made = make_test(sources, tmp_path / "judge", seed=3, records=False)
    assert made.kind == "columns" and made.counts["documents"] == len(rows + copies)
    assert sum(made.counts[name] for name in ("heldout", "copies", "training")) == len(rows + copies)
    sets = {half: read(tmp_path / "judge" / FOLDER / half) for half in HALVES}
    assert sets["dev"].documents == sets["test"].documents and not set(sets["dev"].queries) & set(
        sets["test"].queries
    )
    assert sum(len(one.queries) for one in sets.values()) == made.counts["queries"] <= MOST_QUERIES
    (source,) = training_sources(sources, tmp_path / "judge")
    trained = [json.loads(line)["text"] for line in Path(source["source"]).read_text().splitlines()]
    assert len(trained) == made.counts["training"]
    bodies = {text.partition("\n")[2].removesuffix(" The end.") for text in trained}
    heldout = {text.removesuffix(" The end.") for text in sets["test"].documents}
    assert len(heldout) > 50 and not bodies & heldout
    # queries find their own passages
    text = {row["title"]: row["text"] for row in rows + copies}
    for one in sets.values():
        for query, relevant in zip(one.queries, one.relevant):
            assert [one.documents[row] for row in relevant] == [text[query]]


def test_the_same_text_and_seed_give_the_same_test_and_others_are_refused(tmp_path):
    written(tmp_path / "mine.jsonl")
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    first = make_test(sources, tmp_path / "a", seed=0, records=True)
    assert first == make_test(sources, tmp_path / "a", seed=0, records=True)
    make_test(sources, tmp_path / "b", seed=0, records=True)
    for path in (tmp_path / "a").rglob("*.jsonl"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    about = tmp_path / "a" / "about.json"
    older = json.loads(about.read_text())
    del older["settings"]["sources"][0]["markup"]  # of a version that did not have it
    about.write_text(json.dumps(older))
    assert make_test(sources, tmp_path / "a", seed=0, records=True).counts == first.counts
    with pytest.raises(UserError, match="another text or seed"):
        make_test(sources, tmp_path / "a", seed=1, records=True)


def test_records_to_train_on_are_pairs_of_the_same_kind(tmp_path):
    rows, copies = written(tmp_path / "mine.jsonl")
    sources = data_config({"sources": f"{tmp_path / 'mine.jsonl'}@2"}).sources
    made = make_test(sources, tmp_path / "judge", seed=0, records=True)
    (source,) = training_sources(sources, tmp_path / "judge")
    pairs = [json.loads(line) for line in Path(source["source"]).read_text().splitlines()]
    assert source["weight"] == 2 and len(pairs) == made.counts["training"]
    assert {(row["text"], row["positive"]) for row in pairs} <= {
        (row["title"], row["text"]) for row in rows + copies
    }


def test_sets_of_a_text_have_every_kind_and_stay(tmp_path):
    draw, text, folder = random.Random(1), tmp_path / "mine.txt", tmp_path / "sets"

    def write(count):
        def sentence():
            return " ".join(draw.choices(WORDS, k=12)).capitalize() + "."

        documents = (f"Article {n}\n{' '.join(sentence() for _ in range(6))}" for n in range(count))
        text.write_text("\n\n".join(documents))

    write(400)
    make_sets(text, folder, ("title", "neighbour"))
    for kind in ("title", "neighbour"):
        made = read(folder / FOLDER / kind)
        assert len(made.queries) >= FEWEST
        for query, relevant in zip(made.queries, made.relevant, strict=True):
            before = query + ("\n" if kind == "title" else " ")
            assert relevant and all(f"{before}{made.documents[row]}" in text.read_text() for row in relevant)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    make_sets(text, folder, ("title",))
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write(FEWEST // 2)
    with pytest.raises(UserError, match=f"queries of kind title; a set needs {FEWEST}"):
        make_sets(text, tmp_path / "few", ("title",))
    assert not (tmp_path / "few").exists()


def test_queries_have_the_number_of_their_document(tmp_path):
    numbers = [40, 7, 40, 12, 7]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps({"document": one}) + "\n" for one in numbers))
    assert documents_of(tmp_path).tolist() == [2, 0, 2, 1, 0]


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text(
        "One line of text that is long enough.\nAnother one, just as long as it.\n"
    )
    with pytest.raises(UserError, match="needs 20 pairs"):
        make_test(data_config({"sources": str(tmp_path / "mine.txt")}).sources, tmp_path / "judge", 0, False)


@pytest.mark.parametrize(
    ("seed", "heldout", "sections", "fewest", "enough"),
    [(2, 4, 5, 20, True), (2, 4, 5, 21, False), (4, 4, 9, 20, True), (5, 3, 9, 20, False)],
)
def test_a_test_needs_twenty_pairs_of_four_documents(
    tmp_path, monkeypatch, seed, heldout, sections, fewest, enough
):
    """Documents are drawn one by one: `seed` is one with which so many of the 60 are held out."""
    monkeypatch.setattr(heldout_module, "MOST_DOCUMENTS", 4)
    monkeypatch.setattr(heldout_module, "FEWEST", fewest)
    draw = random.Random(3)
    for number in range(60):
        parts = [f"## Part {n}\n\n{' '.join(draw.choices(WORDS, k=12))}.\n" for n in range(sections)]
        (tmp_path / f"{number}.md").write_text("\n".join([f"# Page {number}\n", *parts]))
    sources = data_config({"sources": str(tmp_path)}).sources
    if enough:
        made = make_test(sources, tmp_path / "judge", seed, False)
        assert made.kind == "heading" and made.counts["queries"] == heldout * sections
    else:
        said = rf"needs {fewest} pairs .* of 4 documents; .* have {heldout * sections} of {heldout} \(60 "
        with pytest.raises(UserError, match=said):
            make_test(sources, tmp_path / "judge", seed, False)
        assert not (tmp_path / "judge").exists()


def test_a_copy_is_what_shares_half_of_its_words_in_a_row():
    heldout = shingles("a b c d e f g h i j")
    heldout.sort()
    assert len(heldout) == 6
    assert is_copy(Document("A B C D E F G H"), heldout) and not is_copy(
        Document("a b x d e f y h i j"), heldout
    )
    assert not is_copy(Document("a b c d e x y z v w"), heldout)  # 1 of 6
    heldout = np.sort(np.concatenate([_but_one("a b c d e f"), _but_one("red dog"), shingles("red dog")]))
    for text in ("a b x d e f", "a b d e f", "a b c d e f g", "b a c d e f", "red dog"):
        assert is_copy(Document(text), heldout), text
    assert not is_copy(Document("a b x y e f"), heldout) and not is_copy(Document("red cat"), heldout)
    heldout = shingles("東京は日本の首都である。")  # without blanks every character is a word
    heldout.sort()
    assert is_copy(Document("東京は日本の首都であり"), heldout)
    assert not is_copy(Document("京都は日本の古い都である。"), heldout)


def test_files_with_headings_are_read_whole_and_tables_by_their_first_two_columns(tmp_path):
    folder = tmp_path / ".own" / "docs"  # hidden is what lies hidden below what the user names
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for number in range(120):
        parts = [f"# Page {number}\n"]
        parts += [f"## Part {part}\n\n{' '.join(draw.choices(WORDS, k=12))}.\n" for part in range(3)]
        (folder / f"{number}.md").write_text("\n".join(parts))
    (folder / "notes.txt").write_text("not read\n")
    made = make_test(data_config({"sources": str(folder)}).sources, tmp_path / "a", 0, False)
    assert made.kind == "heading" and made.counts["documents"] == 120
    by_glob = data_config({"sources": str(folder / "**" / "*.md")}).sources
    assert make_test(by_glob, tmp_path / "c", 0, False).counts == made.counts
    assert made.shown[0][0].startswith("Page ") and ": Part " in made.shown[0][0]
    table = tmp_path / "faq.csv"
    lines = [f"what is {number} of it,{' '.join(draw.choices(WORDS, k=9))}" for number in range(200)]
    table.write_text("\n".join(["asked,given", *lines]) + "\n")
    assert make_test(data_config({"sources": str(table)}).sources, tmp_path / "b", 0, False).kind == "columns"


def test_search_reads_files_with_headings_and_of_other_columns_the_texts_to_train_on(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(150):
        (folder / f"{number}.md").write_text(
            f"# Page {number}\n\nHere is `one` of {' '.join(random.Random(number).choices(WORDS, k=9))}.\n"
        )
    sources = data_config({"sources": str(folder)}).sources
    found = read_split(str(folder / "*.md"))
    assert len(found) == 300 and found[:1] == ["Page 0"] and found[1].startswith("Here is one of word")
    make_test(sources, tmp_path / "judge", 0, True)
    given = [{"source": f"{tmp_path / 'judge'}/train-*.jsonl", "text_key": "positive"}]
    found = read_split(json.dumps(given))
    assert 100 < len(found) < 150 and all(text.startswith("Here is one of word") for text in found)
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"question": "who is it", "answer": "it is nobody at all"}\n' * 3)
    assert read_split(str(asked)) == ["who is it", "it is nobody at all"]
    more = {"context": ["a first one", "a second one"], "id": 3, "answers": {"text": ["no"]}}
    asked.write_text(json.dumps({"question": "who is it", "text": ""} | more) + "\n")
    assert read_split(str(asked)) == ["who is it", "a first one", "a second one"]


def test_nothing_left_to_train_on_is_one_error_and_leaves_no_test(tmp_path):
    rows = [{"title": f"title {n}", "text": f"this is one and the same text as ever {n}"} for n in range(300)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="nothing is left to train on"):
        make_test(data_config({"sources": str(tmp_path / "mine.jsonl")}).sources, tmp_path / "judge", 0, True)
    assert not (tmp_path / "judge").exists()


def test_objects_are_no_column_and_of_a_list_of_texts_the_first_is_taken(tmp_path):
    answers = {"text": ["no"], "answer_start": [3]}
    rows = [{"question": "who is it", "answers": answers, "context": ["it is nobody", "else"]}] * 3
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    (task,) = plan_tasks(sources, structure=True)
    assert task.columns == ("question", "context")
    assert next(structured(task, sources[0], RowFaults())) == Document("it is nobody", "who is it")


@pytest.mark.parametrize("glob", ["", "*"])
def test_a_readme_beside_data_is_not_taken_for_the_text(tmp_path, glob):
    draw = random.Random(0)
    rows = [{"title": f"title {n}", "text": " ".join(draw.choices(WORDS, k=12))} for n in range(200)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "set" / "README.md").write_text("# A set\n\nIt has two hundred rows.\n")
    made = make_test(data_config({"sources": str(tmp_path / "set" / glob)}).sources, tmp_path / "a", 0, True)
    assert made.kind == "columns" and made.counts["documents"] == 200
    assert len(read_split(str(tmp_path / "set" / glob))) == 402  # a search reads both


def test_rows_that_cannot_be_read_are_named_and_halves_of_surrogates_left_out(tmp_path, capsys):
    written(tmp_path / "mine.jsonl")
    with (tmp_path / "mine.jsonl").open("a") as file:
        file.write('{"title": "cut\n{"title": "one \\ud800 half", "text": "of a pair"}\n')
        file.write('{"title": "another one", "text": "of \\udfff two"}\n')
    (tmp_path / "mine.csv").write_text("title,text\none,A first.\ntwo\nthree,A third.\n")
    source = data_config({"sources": f"{tmp_path}/mine.jsonl,{tmp_path}/mine.csv"}).sources
    make_test(source, tmp_path / "judge", 0, False)
    said = capsys.readouterr().err
    assert "note: 2 broken records\nnote: 2 documents not utf8\n" in said
    assert "mine.jsonl, line 534: not JSON" in said and "mine.csv, line 3: 1 fields where" in said
    found = read_split(str(tmp_path / "mine.jsonl"))
    assert found[-4:] == ["one half", "of a pair", "another one", "of two"]


def test_queries_of_one_document_are_no_test(tmp_path):
    """The headings of all pages are the same, so that all queries are of the first."""
    for page in range(60):
        draw = random.Random(page)
        parts = [f"## Part {n}\n\n{' '.join(draw.choices(WORDS, k=9))}\n" for n in range(30)]
        (tmp_path / f"{page}.md").write_text("\n".join(parts))
    with pytest.raises(UserError, match=r"of 4 documents; the held-out ones have 30 of [123] "):
        make_test(data_config({"sources": str(tmp_path / "*.md")}).sources, tmp_path / "judge", 0, False)


def test_contents_that_changed_under_one_name_are_refused(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(150):
        text = f"# Page {number}\n\nHere {' '.join(random.Random(number).choices(WORDS, k=9))}.\n"
        (folder / f"{number}.md").write_text(text)
    sources = data_config({"sources": str(folder)}).sources
    out = folder / "run"  # what a run writes below the text is no text of the user's
    made = make_test(sources, out / "judge", 0, True)
    (out / "judge" / "more.md").write_text("# Not of the text\n")
    assert make_test(sources, out / "judge", 0, True) == made
    changed = folder / "7.md"
    before = changed.read_bytes()
    changed.write_bytes(before.replace(b"Here", b"Hare"))  # as long as it was
    with pytest.raises(UserError, match=r"other contents: \S+/7.md has changed since. Bring back"):
        make_test(sources, out / "judge", 0, True)
    changed.rename(folder / "new.md")
    with pytest.raises(UserError, match=r"7.md is gone since \(and 1 other files differ\).*another --out"):
        make_test(sources, out / "judge", 0, True)
    (folder / "new.md").unlink()
    changed.write_bytes(before)
    assert make_test(sources, out / "judge", 0, True) == made


SPELLED = ["".join(letters) for letters in itertools.product("bdkl", "aeio", "rstn", "aeiu")]


def sentence(draw, number):
    first, *others = draw.choices(SPELLED, k=14)
    return f"Number {number} says {first}, and {' '.join(others)}, of it."


def book(path, paragraphs=700):
    """Paragraphs of five numbered sentences, broken at a margin with blank lines between, as Gutenberg's."""
    draw = random.Random(0)
    text = [" ".join(sentence(draw, 5 * n + k) for k in range(5)) for n in range(paragraphs)]
    path.write_text("\n\n".join(textwrap.fill(one, 72) for one in text) + "\n")
    return [one for paragraph in text for one in sentences_of(paragraph)]


def trained_text(sources, folder):
    rows = [Path(one["source"]).read_text() for one in training_sources(sources, folder)]
    return [json.loads(line)["text"] for text in rows for line in text.splitlines()]


@pytest.mark.parametrize("form", ["book.txt", "page.md", "book.jsonl"])
def test_a_text_of_few_documents_is_split_into_parts_with_a_gap(tmp_path, form):
    sentences = book(tmp_path / "book.txt")
    if form == "page.md":
        parts = [f"## Part {n}\n\n{' '.join(sentences[n : n + 5])}\n" for n in range(0, len(sentences), 5)]
        (tmp_path / form).write_text("# The page\n\n" + "\n".join(parts))
    if form == "book.jsonl":
        (tmp_path / form).write_text(json.dumps({"text": " ".join(sentences)}) + "\n")
    sources = data_config({"sources": str(tmp_path / form)}).sources
    made = make_test(sources, tmp_path / "judge", 0, False)
    counts = made.counts
    assert 1000 < made.part < 2000 and made.kind == ("heading" if form == "page.md" else "neighbour")
    assert 100 < counts["documents"] <= 201 and 10 < counts["heldout"] < 0.35 * counts["documents"]
    trained = " ".join(trained_text(sources, tmp_path / "judge"))
    number = {one: n for n, one in enumerate(sentences)}
    kept = {number[one] for one in sentences if one in trained}
    passages = read(tmp_path / "judge" / FOLDER / "test").documents
    asked = {number[one] for passage in passages for one in sentences_of(passage) if one in number}
    assert len(kept) > 0.6 * len(sentences) and len(asked) > 50
    # nobody trains on what is asked for, nor on what stands beside it
    distance = min(abs(a - b) for a in asked for b in kept)
    characters = GAP / max(map(len, sentences))
    assert distance > (characters if form != "page.md" else 5)


def test_many_documents_are_no_parts(tmp_path):
    written(tmp_path / "mine.jsonl")
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    assert make_test(sources, tmp_path / "judge", 0, False).part == 0


def test_dev_and_test_ask_of_different_documents(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for page in range(200):
        draw = random.Random(page)
        parts = [f"## Part {n} of page {page}\n\nOf page {page}: {sentence(draw, n)}\n" for n in range(4)]
        (folder / f"{page}.md").write_text("\n".join(parts))
    make_test(data_config({"sources": str(folder)}).sources, tmp_path / "judge", 0, False)
    pages = {}
    for half in HALVES:
        place = tmp_path / "judge" / FOLDER / half
        queries = read(place).queries
        pages[half] = [query.split()[-1] for query in queries]
        # those of one document have one number, and those of different ones different ones
        pairs = set(zip(pages[half], documents_of(place).tolist()))
        assert len(pairs) == len(set(pages[half])) == len({number for _, number in pairs}) > 10
        assert len(queries) == 4 * len(pairs)
    assert not set(pages["dev"]) & set(pages["test"])
    # one large document: the test has the others
    assert _halves({"a": 0, "b": 0, "c": 0, "d": 1, "e": 2, "f": 2}) == (["a", "b", "c"], ["d", "e", "f"])
    assert _halves({"a": 1, "b": 0, "c": 0, "d": 0, "e": 2, "f": 3})[1] == ["a", "e", "f"]


def test_documents_that_repeat_with_small_edits_are_not_trained_on(tmp_path):
    draw = random.Random(0)
    rows = []
    for number in range(200):
        length = 9 if number % 2 else 60
        words = draw.choices(WORDS, k=length)
        rows.append({"title": f"title {number}", "text": " ".join(words)})
        for copy in range(2):
            edited = words.copy()
            for place in range(copy, length, 14):  # a word in 14 is another, and once in a while one is gone
                edited[place] = "edited"
            if number % 4 < 2:
                edited.remove("edited")
            rows.append({"title": f"title {number}", "text": " ".join(edited)})
    draw.shuffle(rows)
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources
    make_test(sources, tmp_path / "judge", 0, False)
    trained = [text.partition("\n")[2].split() for text in trained_text(sources, tmp_path / "judge")]
    heldout = [text.split() for text in read(tmp_path / "judge" / FOLDER / "test").documents]
    assert len(trained) > 200 and len(heldout) > 60
    for one in trained:
        for other in heldout:
            assert difflib.SequenceMatcher(None, one, other).quick_ratio() < 0.75
