"""The page of a run: its own start beside what it has learned, and no request to any network."""

import json
import math
import re
import shutil
from dataclasses import astuple
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from browser import require_sound
from run_helpers import command, finish, start
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import tokenization_utils_tokenizers

from pretrain.commands.show.__main__ import show
from pretrain.commands.show.page import (
    choose_queries,
    mark_special,
    measure,
    models_of,
    page_of,
    read_pairs,
    retrieval,
)
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.start.encoder import starting_encoder

VOID = {"meta", "link", "br", "img", "path", "use", "circle", "rect", "line"}


class Balanced(HTMLParser):
    """Fail on an end tag that closes nothing, and collect what lies in <span class="cosine">."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.cosines: list[str] = []

    def handle_starttag(self, tag, attributes) -> None:
        if tag not in VOID:
            self.opened.append(tag)
        if ("class", "cosine") in attributes:
            self.cosines.append("")

    def handle_endtag(self, tag) -> None:
        if tag not in VOID:
            assert self.opened.pop() == tag

    def handle_data(self, data) -> None:
        if self.opened[-1:] == ["span"] and re.fullmatch(r"-?\d\.\d{3}", data):
            self.cosines[-1] = data


@pytest.fixture(scope="module")
def idle(tiny_data, tmp_path_factory):
    """A run whose learning rate is too small to change a weight."""
    run = tmp_path_factory.mktemp("idle") / "run"
    finish(start(command(tiny_data, run, train__steps=2, train__warmup_steps=0, train__lr="1e-30")))
    return run


@pytest.mark.full
def test_the_start_is_that_of_the_run(idle):
    config = load_config(idle / "config.yaml", {})
    torch.rand(3)  # whatever was drawn before
    encoder = starting_encoder(config, load_tokenizer(config.data_folder))
    trained, ours = load_file(idle / "export" / "model.safetensors"), encoder.lm.state_dict()
    assert len(trained) > 20
    for name, weights in trained.items():
        torch.testing.assert_close(ours[name], weights, rtol=0, atol=1e-29, msg=name)  # biases were 0


def test_retrieval_is_that_of_its_formulas_and_equal_vectors_find_nothing():
    rng = np.random.default_rng(0)
    queries, answers = rng.normal(size=(40, 5)), rng.normal(size=(40, 5))
    answers += queries
    found, gains = [], []
    for number, query in enumerate(queries):
        cosines = [float(query @ one / np.linalg.norm(query) / np.linalg.norm(one)) for one in answers]
        rank = sorted(cosines, reverse=True).index(cosines[number]) + 1
        found.append(rank <= 5)
        gains.append(1 / math.log2(rank + 1) if rank <= 10 else 0)
    measured = measure(queries, answers)
    assert measured.recall == np.mean(found) and measured.ndcg == pytest.approx(np.mean(gains))
    assert 0.2 < measured.recall < 0.9
    same = measure(np.ones((30, 3)), np.ones((30, 3)))
    assert same.recall == same.ndcg == 0 and same.cosine == pytest.approx(1)


def test_queries_and_answers_have_the_prompts_of_the_run_also_at_the_start(idle, tmp_path):
    run, prompts = shutil.copytree(idle, tmp_path / "run"), {"query": "the old ", "document": "a river "}
    said = {"prompts": prompts, "default_prompt_name": "query"}
    for folder in (run / "export", run / "best"):
        (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
        pooling = folder / "1_Pooling" / "config.json"
        pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    config = load_config(run / "config.yaml", {})
    start, after = models_of(run, config, load_tokenizer(config.data_folder)).values()
    texts = ["a house by the sea", "two of them sang"]
    library = SentenceTransformer(str(run / "best"), device="cpu")
    expected = library.encode_query(texts), library.encode_document(texts)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    for model in (start, after):
        for encode, vectors in zip((model.encode_query, model.encode_document), expected):
            np.testing.assert_allclose(encode(texts), vectors, atol=1e-4)
        pairs = list(zip(texts, reversed(texts)))
        by_hand = measure(expected[0], expected[1][::-1])
        assert astuple(retrieval(model, pairs)) == pytest.approx(astuple(by_hand), abs=1e-4)


def rows(config, split):
    reader = ShardReader(config.data_folder, split)
    return [row for index in range(reader.num_chunks) for row in reader.read(index).sequences]


@pytest.mark.full
def test_a_page_is_whole_and_needs_no_network(idle, monkeypatch):
    monkeypatch.setattr(tokenization_utils_tokenizers.logger, "warning_once", pytest.fail)
    html = page_of(idle, 200, ["<b>the old river</b>"])
    page = Balanced()
    page.feed(html)
    assert not page.opened
    assert not re.search(r"""(?:src|href|action)=["'](?!#)|@import|url\((?!#)|<script|<iframe""", html)
    assert "&lt;b&gt;the old river&lt;/b&gt;" in html and "<b>the" not in html
    assert html.count("<svg") >= 3 and "<mark>[MASK]</mark>" in html and "held-out MLM loss" in html
    assert "<em>anchor</em> is made by <code>" in html and "masked tokens" in html
    # a run that has learned nothing finds the same before and after
    config = load_config(idle / "config.yaml", {})
    pairs = read_pairs(config.data_folder, load_tokenizer(config.data_folder))
    heldout, train = ({row.tobytes() for row in rows(config, split)} for split in ("heldout", "train"))
    assert len(pairs) >= 10 and not heldout & train
    figures = re.findall(r">recall@5</th><td>([\d.]+)%</td><td>([\d.]+)%</td>", html)
    assert len(figures) == 1 and figures[0][0] == figures[0][1] and f"each of {len(pairs)} held-out" in html
    before, after = page.cosines[:5], page.cosines[5:]
    assert len(after) == 5 and before == after and "before training" in html
    assert before == sorted(before, reverse=True)


@pytest.mark.full
def test_a_page_says_how_many_sentences_were_searched(idle):
    config = load_config(idle / "config.yaml", {})
    there = ShardReader(config.data_folder, "train").num_sequences
    assert f"The nearest of {there:,} training sentences" in page_of(idle, 10 * there, ["the old river"])


def test_a_page_is_sound_in_a_browser(browser, idle, tmp_path):
    (tmp_path / "page.html").write_text(page_of(idle, 200, ["<b>the old river</b>"]), "utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    assert "<b>the old river</b>" in browser.find_element("tag name", "body").text
    require_sound(browser)


def test_queries_are_held_out_sentences_of_medium_length():
    medium = [f"one two three four five six {number}" for number in range(23)]
    assert choose_queries(["short", *medium, "word " * 40]) == medium[::4][:5]
    assert mark_special("<s> a [DEL] & b") == "<mark>&lt;s&gt;</mark> a <mark>[DEL]</mark> &amp; b"


def test_what_is_no_run_or_no_query_is_refused(idle, tmp_path):
    with pytest.raises(UserError, match="not the folder of a run"):
        show(str(tmp_path))
    with pytest.raises(UserError, match="no such file"):
        show(str(idle), queries=tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UserError, match="holds no query"):
        show(str(idle), queries=tmp_path / "empty.txt")
