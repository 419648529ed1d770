"""A small corpus, a parser, and data annotated by it, which tests of preparation share."""

import warnings
from pathlib import Path

import pytest
from annotation_helpers import SENTENCES, annotated_config
from prepare_helpers import make_corpus

from pretrain.prepare.run import prepare


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> tuple[Path, list[list[str]]]:
    """A text file, and the sentences of each of its documents."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    return path, make_corpus(path)


@pytest.fixture(scope="session")
def parser(tmp_path_factory) -> str:
    """A spaCy pipeline with a tagger and a dependency parser that has learned three sentences: quick, and
    mostly wrong."""
    import spacy
    from spacy.training import Example

    taught = [
        ("Anna likes old friends.", "NNP VBZ JJ NNS .", [1, 1, 3, 1, 1], "nsubj ROOT amod obj punct"),
        ("The river is blue today.", "DT NN VBZ JJ NN .", [1, 3, 3, 3, 3, 3], "det nsubj cop ROOT obl punct"),
        (
            "Nobody has seen the house.",
            "NN VBZ VBN DT NN .",
            [2, 2, 2, 4, 2, 2],
            "nsubj aux ROOT det obj punct",
        ),
    ]
    pipeline = spacy.blank("en")
    pipeline.add_pipe("tagger")
    pipeline.add_pipe("parser", config={"min_action_freq": 1})
    examples = [
        Example.from_dict(
            pipeline.make_doc(text), {"tags": tags.split(), "heads": heads, "deps": deps.split()}
        )
        for text, tags, heads, deps in taught
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = pipeline.initialize(lambda: examples)
        for _ in range(15):
            pipeline.update(examples, sgd=optimizer)
    folder = tmp_path_factory.mktemp("parser") / "tiny"
    pipeline.to_disk(folder)
    return str(folder)


@pytest.fixture(scope="session")
def annotated_data(tmp_path_factory, parser) -> Path:
    folder = tmp_path_factory.mktemp("annotated")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    prepare(annotated_config(folder / "corpus.txt", parser), folder / "data", workers=1, progress=False)
    return folder / "data"
