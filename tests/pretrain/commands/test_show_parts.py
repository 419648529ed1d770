"""What the page of a run says, part by part: of data alone, and of runs that are made up."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from run_helpers import TINY

from pretrain.commands.show import page
from pretrain.commands.show.__main__ import show
from pretrain.commands.show.page import (
    Retrieval,
    batch_lines,
    choose_queries,
    facts,
    heldout_figures,
    measure,
    read_pairs,
    search,
)
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.sentences import split_sentences


@pytest.fixture
def config(tiny_data):
    return load_config(None, TINY | {"data.folder": str(tiny_data)})


@pytest.fixture(scope="module")
def tokenizer(tiny_data):
    return load_tokenizer(tiny_data)


def summary_of(run, **more) -> None:
    (run / "report").mkdir(parents=True)
    about = {"steps": 1234, "seconds": 62.0, "tokens": 5_600_000, "start": {}, "best": {}}
    (run / "report" / "summary.json").write_text(json.dumps(about | more))


def test_facts_are_of_the_encoder_the_data_and_the_training(config, tmp_path):
    data = ShardReader(config.data_folder, "train")
    encoder, of_data, objective = facts(tmp_path, config)
    assert encoder == ("encoder", "bert, 2 layers, 32 wide, pooling mean, from random weights")
    assert of_data[1].startswith(f"{data.num_sequences:,} sequences, ") and of_data[1].endswith("k tokens")
    assert objective == ("objective", "clear, batches of 16")
    summary_of(tmp_path)
    config.model.init = "bert-base-uncased"
    found = dict(facts(tmp_path, config))
    assert found["encoder"].endswith("from bert-base-uncased")
    assert found["trained"] == "1,234 steps, 5.6M tokens in 01:02"


def test_figures_are_those_that_the_start_and_the_best_have(tmp_path):
    assert heldout_figures(tmp_path / "none") == []
    start = {"heldout_mlm_loss": 6.128, "partner_found": 0.125, "partner_among": 24, "stsb-dev": 50.0}
    best = start | {"heldout_mlm_loss": 5.0, "partner_found": 0.5, "partner_loss": 1.0, "partner_among": 1000}
    summary_of(tmp_path / "a", start=start, best=best)
    assert heldout_figures(tmp_path / "a") == [
        ("held-out MLM loss (nats)", "6.13", "5.00"),
        ("top-1 retrieval of the other view (1,000 candidates, %)", "12.50", "50.00"),
        ("STS-B dev (Spearman x 100)", "50.00", "50.00"),
    ]
    summary_of(tmp_path / "b", start=start, best=best, labels={"stsb-dev": "own"})
    assert heldout_figures(tmp_path / "b") == [("own", "50.00", "50.00")]


def test_the_first_batch_is_shown_as_the_model_sees_it(config, tokenizer):
    shown = batch_lines(config, tokenizer)
    assert len(shown) == 3 and "[MASK]" in str(shown) and all("[CLS]" in str(lines) for lines in shown)
    assert len({"\n".join(lines) for lines in shown}) == 3


def test_sentences_are_the_first_ones_of_a_split(config, tokenizer):
    reader = ShardReader(config.data_folder, "train")
    every = list(page._sentences(config, "train", tokenizer, 10**6))
    assert (
        len(every) == reader.num_sequences
        and list(page._sentences(config, "train", tokenizer, 7)) == every[:7]
    )
    assert list(page._sentences(config, "train", tokenizer, 0)) == []
    assert all(text.startswith("The ") and "[CLS]" not in text for text in map(str.strip, every))


def test_search_finds_for_each_query_what_each_model_has_nearest(config, tokenizer):
    def model(sign):
        def encode(texts):
            return np.array([[sign * (sum(map(ord, text)) % 97 - 48), 1.0] for text in texts])

        return SimpleNamespace(encode_document=encode, encode_query=encode)

    models = {"before": model(1), "after": model(-1)}
    count, found = search(models, config, tokenizer, 50, ["what", "else"])
    corpus = list(dict.fromkeys(page._sentences(config, "train", tokenizer, 50)))
    assert count == len(corpus) and list(found) == ["what", "else"]
    for query, by_model in found.items():
        assert list(by_model) == ["before", "after"]
        for name, hits in by_model.items():
            of_query = models[name].encode_query([query])[0]
            vectors = models[name].encode_document(corpus)
            cosines = vectors @ of_query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(of_query)
            assert [hit.cosine for hit in hits] == pytest.approx(sorted(cosines, reverse=True)[:5], abs=1e-5)
    heldout = choose_queries(list(page._sentences(config, "heldout", tokenizer, 50)))
    assert list(search(models, config, tokenizer, 50, [])[1]) == heldout and len(heldout) == 5


def test_pairs_are_of_paragraphs_all_of_whose_sentences_are_held_out(
    tiny_data, tokenizer, tmp_path, monkeypatch
):
    given = json.loads((tiny_data / page.PAIRS).read_text())
    found = read_pairs(tiny_data, tokenizer)
    assert len(found) >= 10 and set(found) <= {tuple(pair) for pair in given}
    for name in ("manifest.json", "heldout", "tokenizer"):
        (tmp_path / name).symlink_to(tiny_data / name)
    assert read_pairs(tmp_path, tokenizer) == []
    (tmp_path / page.PAIRS).write_text(json.dumps(found)[:99])
    with pytest.raises(UserError, match=rf"{page.PAIRS} is damaged \(.*prepare the data again"):
        read_pairs(tmp_path, tokenizer)
    first, second = found[:2]
    training = "The sentence of nobody stands here."
    extra = [
        first,
        (first[0], second[1]),
        ("Another one.", first[1]),
        (training, second[1]),
        (second[0], training),
    ]
    extra.append((found[2][0], f"{found[2][1]} {training}"))
    (tmp_path / page.PAIRS).write_text(json.dumps([*found, *extra]))
    assert read_pairs(tmp_path, tokenizer) == found
    (tmp_path / page.PAIRS).write_text(json.dumps(found[:10]))
    assert read_pairs(tmp_path, tokenizer) == found[:10]
    (tmp_path / page.PAIRS).write_text(json.dumps(found[:9]))
    assert read_pairs(tmp_path, tokenizer) == []
    monkeypatch.setattr(page, "MOST_PAIRS", 11)
    (tmp_path / page.PAIRS).write_text(json.dumps(found))
    assert read_pairs(tmp_path, tokenizer) == found[:11]
    assert all(split_sentences(others) for _, others in found)


def test_ranks_five_and_ten_are_the_last_that_count():
    """All queries lie along one axis, and n other answers are nearer to it than answer n."""
    answers, queries = np.array([[1.0, 0.1 * n] for n in range(12)]), np.tile([[1.0, 0.0]], (12, 1))
    alone = measure(queries[:1], answers[:1])
    assert (alone.recall, alone.ndcg, alone.cosine) == (1.0, 1.0, 0.0)
    found = measure(queries, answers)
    assert found.recall == 5 / 12
    assert found.ndcg == pytest.approx(sum(1 / np.log2(2 + n) for n in range(10)) / 12)
    assert found.cosine == pytest.approx(np.mean([1 / np.hypot(1, 0.1 * n) for n in range(12)]))


def test_retrieval_is_printed_in_percent(capsys):
    page._print_retrieval({"before": Retrieval(0.1234, 0.25, -0.5), "after": Retrieval(1.0, 0.5, 0.125)}, 234)
    head, recall, ndcg, cosine = capsys.readouterr().out.strip("\n").splitlines()
    assert head.split() == ["held-out", "retrieval", "(234", "candidates)", "before", "after"]
    assert recall.split() == ["recall@5", "12.3%", "100.0%"] and ndcg.split() == ["nDCG@10", "25.0%", "50.0%"]
    assert (
        cosine.split()[-2:] == ["-0.50", "0.12"]
        and len({len(line) for line in (head, recall, ndcg, cosine)}) == 1
    )


@pytest.mark.parametrize("count", [4, 5, 9, 10, 23])
def test_queries_are_spread_evenly(count):
    medium = [f"{' '.join(['w'] * (6 + n % 15))} {n}"[2:] for n in range(count)]
    others = ["a b c d e", " ".join(["w"] * 21)]
    assert all(6 <= len(text.split()) <= 20 for text in medium)
    chosen = choose_queries([others[0], *medium, *medium, others[1]])
    step = max(1, count // 5)
    wanted = medium[::step][:5]
    assert chosen == [*wanted, *([*others[:1]] if count < 5 else [])][:5]


def test_the_page_is_written_where_it_is_asked_for(tmp_path, monkeypatch, capsys):
    asked = []
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("{}")
    (tmp_path / "q.txt").write_text("one\n\ntwo\n")
    monkeypatch.setattr(page, "page_of", lambda *words: asked.append(words) or "<html>é")
    show(str(run))
    assert (run / "report" / "page.html").read_text("utf-8") == "<html>é"
    show(str(run), out=tmp_path / "new" / "own.html", sentences=7, queries=tmp_path / "q.txt")
    assert (tmp_path / "new" / "own.html").is_file()
    assert asked == [(run, 10_000, []), (run, 7, ["one", "two"])]
    assert f"page: {tmp_path}/new/own.html" in capsys.readouterr().out


def test_the_page_has_all_of_its_parts(config, tokenizer, tmp_path, monkeypatch):
    """The run is made up: stand-ins replace the parts that need a model."""
    given = {}
    monkeypatch.setattr(page, "load_config", lambda path, overrides: config)
    monkeypatch.setattr(page, "models_of", lambda *_: {"before training": 1, "after training": 2})
    monkeypatch.setattr(page, "search", lambda *words: (words[3], {query: {} for query in words[4]}))
    monkeypatch.setattr(page, "curves", lambda run: {"loss/total": "<svg>curve</svg>"})
    monkeypatch.setattr(
        page,
        "retrieval",
        lambda model, pairs: given.setdefault(model, pairs) and Retrieval(0.25 * model, 0.5, 0.1),
    )
    html = page.page_of(tmp_path, 4321, ["<b>old"])
    assert given[1] == given[2] == read_pairs(config.data_folder, tokenizer)
    for part in (
        "25.0%",
        "50.0%",
        "4,321",
        "&lt;b&gt;old",
        "<svg>curve</svg>",
        "<mark>[MASK]</mark>",
        "masked tokens",
    ):
        assert part in html, part
    assert "On documents held out of the text" not in html
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "judge.json").write_text("{}")
    monkeypatch.setattr(page, "report_lines", lambda content: [f"judged {content}"])
    monkeypatch.setattr(page, "read_pairs", lambda *_: [])
    config.objective.mlm.weight = 0.0
    html = page.page_of(tmp_path, 1, ["x"])
    assert "judged {}" in html and "recall@5" not in html and "masked tokens" not in html
    (tmp_path / "report" / "judge.json").write_text('{"rows": [')
    with pytest.raises(UserError, match=r"report/judge.json is damaged \(.*judges again"):
        page.page_of(tmp_path, 1, ["x"])
