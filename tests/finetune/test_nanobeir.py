"""Retrieval: figures are those of sentence-transformers, whatever the form of the files."""

import json
import os

import numpy as np
import pyarrow
import pytest
from answer_checks import require_answers
from commands import call
from model_folders import SENTENCES, save_bert, save_prompted, save_run
from pyarrow import parquet
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    InformationRetrievalEvaluator,
    NanoBEIREvaluator,
)
from sentence_transformers.util import cos_sim, semantic_search

from finetune.encoders.models import open_model
from finetune.nanobeir import PARTS, THIRTEEN, available, evaluate, main, part_files, read
from finetune.results import read as read_result
from pretrain.benchmarks.retrieval import DEPTH, rank, score
from pretrain.common.errors import UserError

WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def made(seed, documents=150, queries=12):
    """Return (corpus, queries, relevant) of random words: id -> text, id -> text, query -> documents."""
    draw = np.random.default_rng(seed)

    def texts(count, longest):
        found = set()
        while len(found) < count:  # all different: who breaks ties how is not asked here
            found.add(" ".join(draw.choice(WORDS, draw.integers(2, longest))))
        return sorted(found)

    corpus = {f"d{n}": text for n, text in enumerate(texts(documents, 20))}
    asked = {f"q{n}": text for n, text in enumerate(texts(queries, 6))}
    names = list(corpus)
    count = min(9, documents)
    relevant = {name: set(draw.choice(names, draw.integers(1, count), replace=False)) for name in asked}
    return corpus, asked, relevant


def rows_of(corpus, asked, relevant):
    return {
        "corpus": [{"_id": name, "text": text} for name, text in corpus.items()],
        "queries": [{"_id": name, "text": text} for name, text in asked.items()],
        "qrels": [
            {"query-id": query, "corpus-id": name} for query in relevant for name in sorted(relevant[query])
        ],
    }


def write_set(folder, rows, form="parquet"):
    """Write a set as the hub has it (parquet), or as one jsonl file a part."""
    for part, content in rows.items():
        folder.mkdir(parents=True, exist_ok=True)
        if form == "jsonl":
            (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
        else:
            (folder / part).mkdir()
            half = len(content) // 2
            for number, some in enumerate((content[:half], content[half:])):
                name = f"train-{number:05d}-of-00002.parquet"
                parquet.write_table(pyarrow.Table.from_pylist(some), folder / part / name)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    return save_run(save_bert(folder / "bert"), folder / "mine", "mean")


def lacking_documents(corpus, asked, relevant):
    """Half of the corpus is not there, texts of others are empty, and a query has no text."""
    half = dict(list(corpus.items())[::2])
    emptied = {name: "" if number % 3 == 0 else text for number, (name, text) in enumerate(half.items())}
    return emptied, asked | {"q1": ""}, relevant


def every_text_twice(corpus, asked, relevant):
    """Ids fall as rows rise, and half of the relevant documents are the second of two equal texts."""
    twins = {f"{kind}{99999 - int(name[1:])}": text for kind in "xa" for name, text in corpus.items()}
    names = {query: {f"x{99999 - int(name[1:])}" for name in names} for query, names in relevant.items()}
    return twins, asked, names


@pytest.mark.parametrize("change", [lambda *parts: parts, lacking_documents, every_text_twice])
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_sentence_transformers(run_folder, tmp_path, seed, change):
    corpus, asked, relevant = change(*made(seed))
    data = read(write_set(tmp_path / "NanoMine", rows_of(corpus, asked, relevant)))
    found = evaluate(open_model(run_folder), {"NanoMine": data})
    ours = found.tasks["NanoMine"].scores
    evaluator = InformationRetrievalEvaluator(
        {name: text for name, text in asked.items() if text},
        {name: text for name, text in corpus.items() if text},
        relevant,
        accuracy_at_k=[1],
        precision_recall_at_k=[10, 100],
        name="x",
        # so that equal texts tie there too: rounding goes by the batch, and by the place in a product
        batch_size=1,
        score_functions={"cosine": lambda a, b: cos_sim(a.double(), b.double()).round(decimals=6)},
    )
    theirs = evaluator(SentenceTransformer(str(run_folder / "export"), device="cpu"))
    assert len(ours) == 7
    for key, value in ours.items():
        assert value == pytest.approx(100 * theirs[f"x_cosine_{key}"], abs=1e-4), key
    assert found.complete == (change is not lacking_documents)
    if not found.complete:
        lost = len({name for names in relevant.values() for name in names if not corpus.get(name)})
        said = f"NanoMine: relevant documents missing in corpus, or without text: {lost}; queries of qrels"
        assert found.notes[-1].startswith(said)


CARD = """---
configs:
{}
---
"""


def test_figures_are_those_of_sentence_transformers_nanobeir(run_folder, tmp_path):
    """Its own evaluator reads the same folder, in the form of sentence-transformers/NanoBEIR-en."""
    folder, configs = tmp_path / "NanoBEIR", []
    for part in PARTS:
        (folder / part).mkdir(parents=True)
        configs += [f"- config_name: {part}", "  data_files:"]
        for seed, name in enumerate(("NanoMSMARCO", "NanoNQ")):
            rows = rows_of(*made(seed))[part]
            if part == "qrels":  # a list of documents in a row
                rows = [
                    {
                        "query-id": query,
                        "corpus-id": [row["corpus-id"] for row in rows if row["query-id"] == query],
                    }
                    for query in sorted({row["query-id"] for row in rows})
                ]
            file = f"{part}/{name}-00000-of-00001.parquet"
            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / file)
            configs += [f"  - split: {name}", f"    path: {file}"]
    (folder / "README.md").write_text(CARD.format("\n".join(configs)))
    theirs = NanoBEIREvaluator(["msmarco", "nq"], dataset_id=str(folder))(
        SentenceTransformer(str(run_folder / "export"), device="cpu")
    )
    assert available(tmp_path) == ["NanoMSMARCO", "NanoNQ"]
    assert call(main, run_folder, eval_data=tmp_path, out=tmp_path / "out") == 0
    result = read_result(tmp_path / "out/nanobeir-mean.json")
    tasks = result.tasks
    require_answers(result, [name for name in tasks if not name.startswith("average")])
    for name in ("NanoMSMARCO", "NanoNQ"):
        for key in ("ndcg@10", "mrr@10", "map@100", "accuracy@1", "precision@10", "recall@10"):
            expected = 100 * theirs[f"{name}_cosine_{key}"]
            assert tasks[name].scores[key] == pytest.approx(expected, abs=1e-4), (name, key)


def test_parquet_and_jsonl_are_one_set(tmp_path):
    rows = rows_of(*made(0))
    sets = [read(write_set(tmp_path / form, rows, form)) for form in ("parquet", "jsonl")]
    assert sets[0] == sets[1] and len(sets[0].documents) == 150
    assert len(part_files(tmp_path / "parquet", "corpus")) == 2


def test_empty_texts_titles_gains_and_unknown_ids(tmp_path):
    rows = {
        "corpus": [
            {"_id": 1, "title": "storm", "text": "at sea"},
            {"_id": 2, "title": None, "text": ""},
            {"_id": 3, "text": "calm"},
        ],
        "queries": [{"_id": "a", "text": "wind"}, {"_id": "b", "text": ""}, {"_id": "c", "text": "rain"}],
        "qrels": [
            {"query-id": "a", "corpus-id": 1, "score": "2"},
            {"query-id": "a", "corpus-id": 2, "score": 1},
            {"query-id": "a", "corpus-id": 3, "score": 0},
            {"query-id": "b", "corpus-id": 3, "score": 1},
            {"query-id": "c", "corpus-id": 9, "score": 1},
        ],
    }
    data = read(write_set(tmp_path / "set", rows, "jsonl"))
    assert data.documents == ["storm at sea", "calm"]
    assert data.queries == ["wind", "rain"] and data.relevant == [{0: 2.0, 2: 1.0}, {3: 1.0}]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("part", ["corpus", "queries", "qrels"])
def test_one_id_for_two_texts_is_refused_and_equal_ones_pass(tmp_path, part, form):
    corpus, asked, relevant = made(0, documents=5, queries=3)
    rows = rows_of(corpus, asked, relevant)
    rows["qrels"] = [row | {"score": 1} for row in rows["qrels"]]
    expected = read(write_set(tmp_path / "once", rows, form))
    again = rows | {part: [*rows[part], rows[part][1]]}
    assert read(write_set(tmp_path / "again", again, form)) == expected
    if part != "qrels":
        nothing = {"_id": rows[part][1]["_id"], "text": ""}
        assert read(write_set(tmp_path / "empty", rows | {part: [nothing, *rows[part]]}, form)) == expected
    other = rows[part][1] | ({"score": 2} if part == "qrels" else {"text": "of others"})
    write_set(tmp_path / "other", rows | {part: [*rows[part], other]}, form)
    with pytest.raises(UserError, match="; remove one of them") as error:
        read(tmp_path / "other")
    files, name = part_files(tmp_path / "other", part), other.get("_id", other.get("corpus-id"))
    last = len(rows[part]) + 1 - (0 if form == "jsonl" else (len(rows[part]) + 1) // 2)
    assert f"{files[-1]}, row {last}: " in str(error.value) and repr(str(name)) in str(error.value)
    assert part == "qrels" or str(error.value).startswith(f"{files[0]}, row 2, and ")
    before = {"text": "", "title": " "}, {"text": "", "title": "A title"}
    if part != "qrels":  # the first row has no text, of which nothing is kept
        titled = [{"_id": 7, **one} for one in (*before, {"text": "", "title": "Another"})]
        write_set(tmp_path / "titled", rows | {part: titled}, "jsonl")
        with pytest.raises(UserError, match=r", row 2, and \S*, row 3: different texts have the _id '7'"):
            read(tmp_path / "titled")
    else:
        none = rows[part][1] | {"score": 0}
        with pytest.raises(UserError, match="have the score 1 in a row before"):
            read(write_set(tmp_path / "none", rows | {part: [*rows[part], none]}, form))


def test_of_beirs_files_the_qrels_of_test_are_read(tmp_path):
    corpus, asked, relevant = made(0)
    folder = write_set(tmp_path / "nfcorpus", rows_of(corpus, asked, relevant), "jsonl")
    expected = read(folder)
    (folder / "qrels.jsonl").unlink()
    (folder / "qrels").mkdir()
    lines = [f"{query}\t{name}\t1\n" for query in relevant for name in sorted(relevant[query])]
    (folder / "qrels" / "test.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines]))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td149\t1\n")
    assert read(folder) == expected
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0 d149 1\n")
    with pytest.raises(UserError, match=r"test.tsv: 3 columns in the first line, but \['q0 d149 1'\]"):
        read(folder)


def test_scores_by_hand():
    found = score([7, 1, 9, 2, *range(100, 196)], {1: 3.0, 2: 1.0, 195: 1.0, 500: 2.0})
    gain = 3 / np.log2(3) + 1 / np.log2(5)
    best = 3 + 2 / np.log2(3) + 1 / np.log2(4) + 1 / np.log2(5)
    assert found["ndcg@10"] == pytest.approx(gain / best)
    assert (found["mrr@10"], found["accuracy@1"], found["precision@10"]) == (0.5, 0.0, 0.2)
    assert (found["recall@10"], found["recall@100"]) == (0.5, 0.75)
    assert found["map@100"] == pytest.approx((1 / 2 + 2 / 4 + 3 / 100) / 4)
    perfect = score([5, 6], {5: 1.0, 6: 1.0})
    assert all(perfect[key] == 1 for key in ("ndcg@10", "mrr@10", "map@100", "recall@10"))
    assert set(score([1, 2], {9: 1.0}).values()) == {0.0}


def test_scores_at_their_depths():
    for place, found in ((9, 0.1), (10, 0.0)):
        scores = score([*range(100, 100 + place), 7], {7: 1.0})
        assert (scores["mrr@10"], scores["precision@10"]) == (found, found)
        assert (scores["recall@10"], scores["recall@100"]) == (float(found > 0), 1.0)
        assert (scores["ndcg@10"] > 0) is (found > 0) and scores["map@100"] == 1 / (place + 1)
    for place, found in ((99, 1.0), (100, 0.0)):
        scores = score([*range(1000, 1000 + place), 7], {7: 1.0})
        assert (scores["recall@100"], scores["map@100"] > 0) == (found, found > 0)
    many = score(range(100), dict.fromkeys(range(150), 1.0))
    assert (many["map@100"], many["recall@100"], many["recall@10"]) == (1.0, 100 / 150, 10 / 150)
    assert many["ndcg@10"] == many["accuracy@1"] == many["mrr@10"] == many["precision@10"] == 1.0
    assert score([3, 4], {4: 1.0})["accuracy@1"] == 0 and score([4], {4: 1.0})["accuracy@1"] == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_ranking_is_by_cosine_and_ties_keep_the_order(seed):
    draw = np.random.default_rng(seed)
    # few distinct vectors, whose cosines are exact: many ties
    documents = draw.integers(-1, 2, (300, 2)).astype(np.float32)
    queries = np.array([[1, 0], [0, 2], [-3, 0]], np.float32)
    found = rank(queries, documents)
    assert found.shape == (3, DEPTH)
    for query, rows in zip(queries, found):
        lengths = np.maximum(np.linalg.norm(documents, axis=1), 1e-9)
        cosines = np.round(documents @ query / lengths / np.linalg.norm(query), 6)
        assert rows.tolist() == sorted(range(300), key=lambda row: (-cosines[row], row))[:DEPTH]


def test_prompts_stand_before_every_text(run_folder, tmp_path):
    corpus, asked, relevant = made(1, 30, 5)
    plain = read(write_set(tmp_path / "a", rows_of(corpus, asked, relevant)))
    written = read(
        write_set(
            tmp_path / "b",
            rows_of(
                {name: f"a man {text}" for name, text in corpus.items()},
                {name: f"the cat {text}" for name, text in asked.items()},
                relevant,
            ),
        )
    )
    model = open_model(run_folder)
    prompted = evaluate(model, {"x": plain}, "the cat ", "a man ")
    assert prompted.tasks["x"].scores == evaluate(model, {"x": written}).tasks["x"].scores
    assert "queries begin with 'the cat '" in prompted.protocol


def test_a_published_models_own_prompts_are_used(run_folder, tmp_path):
    corpus, asked, _ = made(1)
    folder = save_prompted(run_folder / "export", tmp_path / "published")
    published, names = SentenceTransformer(str(folder)), list(corpus)
    documents = published.encode_document(list(corpus.values()))
    hits = semantic_search(published.encode_query(list(asked.values())), documents, top_k=9)
    relevant = {name: {names[hit["corpus_id"]] for hit in of[::2]} for name, of in zip(asked, hits)}
    data = read(write_set(tmp_path / "set", rows_of(corpus, asked, relevant), "jsonl"))
    found = evaluate(open_model(folder), {"set": data})
    theirs = InformationRetrievalEvaluator(asked, corpus, relevant)(published)
    assert found.tasks["set"].value == pytest.approx(100 * theirs["cosine_ndcg@10"], abs=1e-4)
    assert "documents begin with 'a man rides '" in found.protocol
    plain = evaluate(open_model(run_folder), {"set": data}).tasks["set"].value
    assert plain < found.tasks["set"].value - 5


def test_the_command_and_the_average(run_folder, tmp_path):
    for seed, name in enumerate((*THIRTEEN, "Mine")):
        write_set(tmp_path / "NanoBEIR" / name, rows_of(*made(seed, 20, 4)), "jsonl")
    flags = {"eval_data": tmp_path, "out": tmp_path / "out"}
    assert call(main, run_folder, tasks="nanofever,Mine", **flags) == 0
    assert set(read_result(tmp_path / "out/nanobeir-mean.json").tasks) == {"NanoFEVER", "Mine"}
    assert call(main, run_folder, **flags) == 0
    tasks = read_result(tmp_path / "out/nanobeir-mean.json").tasks
    mean = np.mean([tasks[name].value for name in THIRTEEN])
    assert len(tasks) == 15 and tasks["average of 13"].value == pytest.approx(mean)
    with pytest.raises(UserError, match="unknown set 'NanoFEVR'; did you mean 'NanoFEVER'"):
        call(main, run_folder, tasks="NanoFEVR", **flags)


def test_an_odd_folder_does_not_stop_the_others(run_folder, tmp_path, capsys):
    sets, flags = tmp_path / "NanoBEIR", {"eval_data": tmp_path, "out": tmp_path / "out"}
    write_set(sets / "Mine", rows_of(*made(1, 20, 4)), "jsonl")
    (sets / "drafts").mkdir()
    assert call(main, run_folder, **flags) == 0
    assert f"left out: {sets / 'drafts'} has no corpus" in capsys.readouterr().err

    def left_out():
        notes = read_result(tmp_path / "out/nanobeir-mean.json").notes
        return [note for note in notes if "left out" in note]

    assert left_out() == []  # drafts is no set
    (write_set(sets / "Broken", rows_of(*made(2, 20, 4)), "jsonl") / "qrels.jsonl").write_text("{")
    assert call(main, run_folder, **flags) == 1
    assert f"left out: {sets / 'Broken' / 'qrels.jsonl'}, line 1: no JSON" in capsys.readouterr().err
    assert set(read_result(tmp_path / "out/nanobeir-mean.json").tasks) == {"Mine"}
    (note,) = left_out()
    assert note.startswith(f"Broken is left out: Broken{os.sep}qrels.jsonl, line 1: no JSON")
    for name, why in (("drafts", "drafts has no corpus"), ("Broken", "no JSON")):
        with pytest.raises(UserError, match=why):
            call(main, run_folder, tasks=name, **flags)
    write_set(sets / "Broken", rows_of(*made(2, 20, 4)), "jsonl")
    assert call(main, run_folder, **flags) == 0 and left_out() == []  # the set is mended


@pytest.mark.parametrize(
    ("part", "line", "message"),
    [
        ("corpus", "{", "no JSON"),
        ("corpus", '["d1", "text"]', "expected an object"),
        ("corpus", '{"_id": "d1"}', "a row without 'text'; it has _id"),
        ("corpus", '{"_id": "d1", "text": 5}', "a text that is none: 5"),
        ("queries", '{"text": "a"}', "a row without '_id'"),
        ("qrels", '{"query-id": "q0"}', "a row without 'corpus-id'"),
        ("qrels", '{"query-id": "q0", "corpus-id": "d0", "score": "x"}', "the score 'x' is no number"),
        ("qrels", '{"query-id": "q0", "corpus-id": "d0", "score": Infinity}', "the score inf is no number"),
        ("qrels", '{"query-id": "nobody", "corpus-id": "d0"}', "no query has a relevant document"),
    ],
)
def test_damaged_files_are_named(tmp_path, part, line, message):
    folder = write_set(tmp_path / "set", rows_of(*made(0, 5, 2)), "jsonl")
    (folder / f"{part}.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        read(folder)


def test_missing_parts_and_no_parquet(tmp_path):
    folder = write_set(tmp_path / "NanoBEIR" / "set", rows_of(*made(0, 5, 2)), "jsonl")
    (folder / "qrels.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no qrels: expected qrels/\*.parquet, qrels.parquet or"):
        read(folder)
    (folder / "qrels.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        read(folder)
    (tmp_path / "empty" / "NanoBEIR").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no set"):
        call(main, "any", eval_data=tmp_path / "empty")
