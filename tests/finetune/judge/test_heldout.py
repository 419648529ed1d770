"""The split of a user's text: by document, the same again, without copies across it."""

import json
import random
from pathlib import Path

import pytest

from finetune.judge.heldout import HALVES, MOST_QUERIES, is_copy, make_test, shingles, training_sources
from finetune.judge.reading import is_read_by_search, pieces_of
from finetune.judge.structure import Document
from finetune.nanobeir import FOLDER, read
from finetune.search.__main__ import read_split
from pretrain.common.errors import UserError
from pretrain.config.data import data_config

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


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text(
        "One line of text that is long enough.\nAnother one, just as long as it.\n"
    )
    with pytest.raises(UserError, match="needs 20 pairs"):
        make_test(data_config({"sources": str(tmp_path / "mine.txt")}).sources, tmp_path / "judge", 0, False)


def test_a_copy_is_what_shares_half_of_its_words_in_a_row():
    heldout = shingles("a b c d e f g h i j")
    heldout.sort()
    assert len(heldout) == 6
    assert is_copy(Document("A B C D E F G H"), heldout) and not is_copy(
        Document("a b x d e f y h i j"), heldout
    )
    assert not is_copy(Document("a b c d e x y z v w"), heldout)  # 1 of 6
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
    assert is_read_by_search(sources)
    found = read_split(str(folder / "*.md"))
    assert len(found) == 300 and found[:1] == ["Page 0"] and found[1].startswith("Here is one of word")
    make_test(sources, tmp_path / "judge", 0, True)
    given = [{"source": f"{tmp_path / 'judge'}/train-*.jsonl", "text_key": "positive"}]
    found = read_split(json.dumps(given))
    assert 100 < len(found) < 150 and all(text.startswith("Here is one of word") for text in found)
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"question": "who is it", "answer": "it is nobody at all"}\n' * 3)
    assert not is_read_by_search(data_config({"sources": str(asked)}).sources)
    written(tmp_path / "mine.jsonl")
    assert is_read_by_search(data_config({"sources": str(tmp_path / "mine.jsonl")}).sources)


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
    (piece,) = pieces_of(data_config({"sources": str(tmp_path / "mine.jsonl")}).sources)
    assert piece.columns == ("question", "context")
    assert next(piece.documents()) == Document("it is nobody", "who is it")


def test_a_readme_beside_data_is_not_taken_for_the_text(tmp_path):
    draw = random.Random(0)
    rows = [{"title": f"title {n}", "text": " ".join(draw.choices(WORDS, k=12))} for n in range(200)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "set" / "README.md").write_text("# A set\n\nIt has two hundred rows.\n")
    made = make_test(data_config({"sources": str(tmp_path / "set")}).sources, tmp_path / "a", 0, True)
    assert made.kind == "columns" and made.counts["documents"] == 200
