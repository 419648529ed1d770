"""Records: read whole or refused by file and line, kept together on the way into the shards."""

import csv
import io
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from test_corpora import write

from pretrain.common.errors import UserError
from pretrain.common.typed_values import parse_value
from pretrain.config.data import Source, data_config
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import COLUMNS, TextRecord, by_column, records, split_joined

WORDS = ["river", "stone", "cloud", "winter", "garden", "letter", "music", "window", "forest", "market"]
FIELDS = ("text", "positive", "negative", "augmented", "label")


def some_triples(count: int = 300, labels: int = 3, seed: int = 0) -> list[dict]:
    """Some have no positive or no negative, some share their text, some occur twice."""
    choose = random.Random(seed)

    def sentence() -> str:
        return (
            f"The {' '.join(choose.choices(WORDS, k=choose.randrange(2, 9)))} was {choose.randrange(10**6)} "
            "years old."
        )

    made: list[dict] = []
    for _ in range(count):
        text = made[-1]["text"] if made and choose.random() < 0.2 else sentence()
        row = {
            "text": text,
            "positive": sentence(),
            "negative": sentence(),
            "augmented": None,
            "label": choose.randrange(labels),
        }
        for column, absent in (("positive", 0.2), ("negative", 0.4)):
            if choose.random() < absent:
                row[column] = None
        made.append(row)
    return made + made[::15]


def as_jsonl(rows: list[dict]) -> str:
    return "".join(
        json.dumps({key: value for key, value in row.items() if value is not None}) + "\n" for row in rows
    )


def as_csv(rows: list[dict], fields: tuple[str, ...] = FIELDS, names: tuple[str, ...] | None = None) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(names or fields)
    writer.writerows([row.get(field) for field in fields] for row in rows)
    return stream.getvalue()


def read(place: Path, **settings) -> list[TextRecord]:
    source = Source(source=str(place), **settings)
    return [record for task in plan_tasks([source], records=True) for record in records(task, source)]


def plain(rows: list[dict], fields: tuple[str, ...] = FIELDS) -> list[tuple]:
    return sorted(
        (*(row.get(name) or "" if name in fields else "" for name in COLUMNS), row.get("label"))
        for row in rows
    )


def found_in(found: list[TextRecord]) -> list[tuple]:
    return sorted((*record.texts, record.label) for record in found)


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 700)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_every_record_is_read_once_and_whole(tmp_path, small_tasks, kind, compression):
    rows = some_triples(60)
    path = write(tmp_path / f"a.{kind}{compression}", as_jsonl(rows) if kind == "jsonl" else as_csv(rows))
    assert len(plan_tasks([Source(source=str(path))], records=True)) > 3
    assert found_in(read(path)) == plain(rows)


def test_simcse_and_other_headers(tmp_path):
    rows = some_triples(20)
    triple = ("text", "positive", "negative")
    simcse = write(tmp_path / "simcse.csv", as_csv(rows, triple, ("sent0", "sent1", "hard_neg")))
    unlabelled = [{**row, "label": None} for row in rows]
    assert found_in(read(simcse)) == plain(unlabelled)
    pairs = [{"query": row["text"], "title": row["positive"], "id": 7} for row in rows]
    path = write(tmp_path / "pairs.jsonl", as_jsonl(pairs))
    keys = {"text_key": "query", "positive_key": "title"}
    assert found_in(read(path, other_fields="ignore", **keys)) == plain(unlabelled, ("text", "positive"))
    with pytest.raises(
        UserError, match=r"pairs\.jsonl, line 1: there is no column 'id' \(columns are query, title"
    ):
        read(path, **keys)


FORMS = {  # of sentence-transformers' data sets, FlagEmbedding's and Tevatron's training files
    "query/answer": ("query answer", ["q", "a"], [("q", "a", "", "")]),
    "question/answer": ("question answer", ["q", "a"], [("q", "a", "", "")]),
    "sentences": ("sentence1 sentence2", ["q", "a"], [("q", "a", "", "")]),
    "triple": ("anchor positive negative", ["q", "a", "n"], [("q", "a", "n", "")]),
    "numbered": (
        "query positive negative_10 negative_2 negative_1",
        ["q", "a", "n10", "n2", ""],
        [("q", "a", "n2", "", "n10")],
    ),
    "lists": (
        "query pos neg",
        ["q", ["a", "b"], ["n", "m", "o"]],
        [(*"qan", "", *"mo"), (*"qbn", "", *"mo")],
    ),
    "passages": (
        "query positive_passages negative_passages",
        ["q", [{"docid": "1", "title": "T", "text": "a"}], [{"text": "n"}]],
        [("q", "T a", "n", "")],
    ),
    "none": ("query pos neg", ["q", ["a"], []], [("q", "a", "", "")]),
}


@pytest.mark.parametrize("form", FORMS)
def test_records_as_the_field_writes_them(tmp_path, form):
    names, values, expected = FORMS[form]
    ignore = {"other_fields": "ignore"} if form == "passages" else {}
    path = write(tmp_path / "a.jsonl", json.dumps(dict(zip(names.split(), values))) + "\n")
    assert [record.texts for record in read(path, **ignore)] == expected
    if not any(isinstance(value, list) for value in values):
        table = write(tmp_path / "a.csv", ",".join(names.split()) + "\n" + ",".join(values) + "\n")
        assert [record.texts for record in read(table)] == expected


def test_several_positives_of_a_row_are_records_apart_or_one_together(tmp_path):
    rows = [{"query": "q", "pos": ["a", "b"], "pos_2": "c", "neg": ["n", "m"]}, {"query": "r", "pos": "d"}]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    apart = [record.texts for record in read(path)]
    assert apart == [*((*("q", text, "n", ""), "m") for text in "abc"), ("r", "d", "", "")]
    source = Source(source=str(path))
    found = [
        one for task in plan_tasks([source], records=True) for one in records(task, source, together=True)
    ]
    assert [by_column(split_joined(one.joined().decode())[0]) for one in found] == [
        {"text": "q", "positive": "a", "positive2": "b", "positive3": "c", "negative": "n", "negative2": "m",
         "augmented": ""},
        {"text": "r", "positive": "d", "negative": "", "augmented": ""},
    ]  # fmt: skip


def test_other_fields_are_ignored_where_they_could_fill_no_empty_column(tmp_path):
    for names in ("question answer context", "sentence1 sentence2 labels"):
        path = write(tmp_path / "a.jsonl", json.dumps(dict(zip(names.split(), "abc"))) + "\n")
        assert [record.texts for record in read(path, other_fields="ignore")] == [("a", "b", "", "")]
    path = write(path, json.dumps({"sentence1": "a", "sentence2": "b", "topic": 3}) + "\n")
    assert [record.label for record in read(path, label_key="topic")] == [3]
    path = write(path, json.dumps({"question": "a", "answr": "b"}) + "\n")
    with pytest.raises(UserError, match="did you mean 'answer'"):
        read(path, other_fields="ignore")


def test_scores_are_numbers_in_json_and_in_tables(tmp_path):
    rows = [
        {"sentence1": "a", "sentence2": "b", "score": 3},
        {"sentence1": "c", "sentence2": "d", "score": 0.5},
    ]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    table = write(tmp_path / "a.tsv", "sentence1\tsentence2\tscore\na\tb\t3\nc\td\t.5\n")
    for place in (path, table):
        assert found_in(read(place)) == [("a", "b", "", "", 3.0), ("c", "d", "", "", 0.5)]
        assert {type(record.label) for record in read(place)} == {float}
        assert {record.label for record in read(place, other_fields="ignore")} == {None}
        assert [record.label for record in read(place, other_fields="ignore", score_key="score")] == [
            3.0,
            0.5,
        ]
    mixed = write(tmp_path / "b.jsonl", as_jsonl([*rows, {"sentence1": "e", "sentence2": "f"}]))
    with pytest.raises(UserError, match=r"line 3: this record has no score, and .* has one"):
        read(mixed)


def test_the_source_that_an_error_of_other_fields_names_keeps_the_scores(tmp_path):
    """As of STS-B's own file, which has columns of no use here."""
    path = write(tmp_path / "a.tsv", "index\tsentence1\tsentence2\tscore\n7\ta\tb\t3\n")
    with pytest.raises(UserError, match="there is no column 'index'") as refused:
        read(path)
    value = str(refused.value).split("--source '")[1].split("'")[0]
    assert json.loads(value) == [{"source": str(path), "other_fields": "ignore", "score_key": "score"}]
    (source,) = data_config({"sources": parse_value(value, list[Source], "--source")}).sources
    assert found_in(read(path, **source.model_dump(exclude={"source"}))) == [("a", "b", "", "", 3.0)]


@pytest.mark.parametrize(
    "row, message",
    [
        ({"sentence1": "a", "sentence2": "b", "score": "high"}, "the score is 'high', not a number"),
        ({"sentence1": "a", "sentence2": "b", "score": float("inf")}, "the score is inf, not a number"),
        ({"sentence1": "a", "score": 0.5}, "a score is of a text and one positive"),
        ({"text": "a", "pos": ["b", "c"], "score": 0.5}, "a score is of a text and one positive"),
        ({"text": "a", "pos": "b", "neg": "c", "score": 1}, "a score is of a text and one positive"),
        ({"sentence1": "a", "sentence2": "b", "label": 0}, "a label beside sentence2"),
        ({"query": "q", "text": "t"}, "two columns for text: query, text"),
        ({"text": "t", "neg_1": "n", "hard_neg_1": "m"}, "two columns for negative1: neg_1, hard_neg_1"),
        ({"text": "t", "neg": ["n", 3]}, "the negative is 3, not text"),
        ({"text": ["t"]}, r"the text is \['t'\], not text"),
        ({"text": "t", "neg": ["n"] * 101}, "101 negatives, more than 100"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(tmp_path, row, message):
    path = write(tmp_path / "a.jsonl", json.dumps(row) + "\n")
    with pytest.raises(UserError, match=rf"a\.jsonl, line 1: .*{message}"):
        read(path)


def test_csv_as_csv_files_are(tmp_path):
    """A byte order mark, commas, quotes and line breaks inside a field, blank rows, CRLF."""
    text = '\ufeffsent0,sent1\r\n"One, two\r\nand ""three"".",Yes.\r\n\r\nFour., \r\n'
    first, second = read(write(tmp_path / "a.csv", text))
    assert first.texts == ('One, two and "three".', "Yes.", "", "") and first.position == 1
    assert second.texts == ("Four.", "", "", "") and second.position == 4


def test_lines_of_text_are_records_as_they_are(tmp_path, small_tasks):
    """wiki1m_for_simcse: neither split into sentences nor filtered, blank lines or not."""
    lines = ["YMCA in South Australia", "One. Two! Three?", "1 2 3", "  spaced   out ", "\u200b"] * 30
    path = write(tmp_path / "a.txt", "\n\n".join(lines))
    found = Counter(record.texts[0] for record in read(path))
    assert found == {"YMCA in South Australia": 30, "One. Two! Three?": 30, "1 2 3": 30, "spaced out": 30}


def test_joined_records_come_apart_again():
    several = ("a", "", "c", "", "d", "e")
    for texts, label in (
        (("a b", "", "", ""), None),
        (("a", "b", "c", "d"), 0),
        (several, 12),
        (several[:4], 1e-05),
    ):
        assert split_joined(TextRecord(texts, label, 0).joined().decode()) == (list(texts), label)


GOOD = '{"text": "Good.", "label": 1}\n'


@pytest.mark.parametrize(
    "name,content,message",
    [
        (
            "a.jsonl",
            GOOD * 3 + '{"text": "x", "label": "1"}\n',
            r"a\.jsonl, line 4: the label is '1', not a whole number",
        ),
        ("a.jsonl", GOOD * 2 + '{"text": "x", "label": 1.0}\n', r"line 3: the label is 1\.0, not"),
        ("a.jsonl", '{"text": "x", "label": true}\n', r"line 1: the label is True, not"),
        ("a.jsonl", '{"text": "x", "label": -1}\n', r"line 1: the label is -1, not a whole number from 0 on"),
        (
            "a.jsonl",
            GOOD + '{"text": "x"}\n',
            r"line 2: this record has no label, and .*a\.jsonl, line 1 has one",
        ),
        (
            "a.jsonl",
            '{"text": "x"}\n' + GOOD,
            r"line 2: this record has a label, and .*line 1 has none",
        ),
        (
            "a.jsonl",
            GOOD + '{"positive": "x", "label": 1}\n',
            r"line 2: there is no column 'text'; there are positive, label",
        ),
        ("a.jsonl", GOOD + '{"text": "\\u200b ", "label": 1}\n', r"line 2: the record has no text"),
        ("a.jsonl", GOOD + '{"text": null, "label": 1}\n', r"line 2: the record has no text"),
        ("a.jsonl", GOOD + '{"text": ["x"], "label": 1}\n', r"line 2: the text is \['x'\], not text"),
        (
            "a.jsonl",
            GOOD + '{"text": "x", "postive": "y"}\n',
            r"line 2: there is no column 'postive'; did you mean 'positive'",
        ),
        ("a.jsonl", '{"text": "x", "sent0": "y"}\n', r"line 1: there are two columns for text: text, sent0"),
        ("a.jsonl", GOOD + "\n\n" + '{"text": \n', r"line 4: not JSON"),
        ("a.jsonl", GOOD + '"text"\n', r"line 2: not a JSON object"),
        (
            "a.csv",
            "sent0,sent_1\na,b\n",
            r"a\.csv, line 1: there is no column 'sent_1'; did you mean 'sent1'",
        ),
        ("a.csv", "a,b\nc,d\n", r"line 1: there is no column 'a'"),
        ("a.csv", "positive\nc\n", r"line 1: there is no column 'text'; there are positive"),
        (
            "a.csv",
            'text,positive\n"two\nlines",b\nc\n',
            r"line 4: 1 fields where the header has 2 \(text, positive\)",
        ),
        ("a.csv", "text,label\na,1\nb,two\n", r"line 3: the label is 'two', not a whole number"),
        ("a.csv", "text,label\na,1\nb,\n", r"line 3: this record has no label"),
        ("a.csv", "text,positive\na,b\n,c\n", r"line 3: the record has no text"),
        ("a.csv", 'text,positive\na,b\n"c,d\n', r"line 3: not csv"),
        ("a.csv", "", r"is empty"),
    ],
)
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_what_is_no_record_is_refused_by_file_and_line(tmp_path, name, content, message, compression):
    path = write(tmp_path / (name + compression), content)
    if not content and compression:
        message = "there is no column 'text'; there are none"
    with pytest.raises(
        UserError, match=message.replace(r"\.jsonl,", r"\.jsonl(\.gz)?,").replace(r"\.csv,", r"\.csv(\.gz)?,")
    ):
        read(path)


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_the_line_is_right_in_a_file_of_several_tasks(tmp_path, small_tasks, compression):
    lines = [json.dumps({"text": f"text {i}"}) for i in range(100)]
    lines[73] = '{"text": 5}'
    path = write(tmp_path / f"a.jsonl{compression}", "\n".join(lines))
    assert len(plan_tasks([Source(source=str(path))], records=True)) > 1
    with pytest.raises(UserError, match=r"line 74: the text is 5, not text"):
        read(path)


def test_sources_without_records(tmp_path):
    with pytest.raises(UserError, match="embedded holds no records"):
        plan_tasks([Source(source="embedded")], records=True)
    with pytest.raises(UserError, match="holds no corpus file"):
        plan_tasks([Source(source=str(tmp_path))])
    write(tmp_path / "a.csv", "text\nx\n")
    for records_ in (False, True):
        assert len(plan_tasks([Source(source=str(tmp_path))], records=records_)) == 1
