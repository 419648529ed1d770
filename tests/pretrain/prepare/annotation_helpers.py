"""Sentences to parse, and data that is prepared with their text and parse."""

from pathlib import Path

from loader_helpers import make_loader

from augment.core.vocabulary import Vocabulary
from pretrain.config.data import DataConfig
from pretrain.data.batch import ViewSpec
from pretrain.data.loader import Loader
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer

NAMES = ["Anna", "the old dog", "a café in Zürich", "nobody", "the river", "my sister", "one of them"]
VERBS = ["has seen", "likes", "didn't find", "must not sell", "is", "carried", "will have"]
OBJECTS = [
    "the blue house",
    "no money",
    "“a quiet life”",
    "https://x.org/a?b=c",
    "what she said",
    "old friends",
]
SENTENCES = [f"{n[0].upper()}{n[1:]} {v} {o} today." for n in NAMES for v in VERBS for o in OBJECTS]


def annotated_config(place: Path, parser: str, **settings) -> DataConfig:
    settings = {
        "vocabulary": 400,
        "heldout": 0.1,
        "chunk_tokens": 800,
        "max_length": 24,
        "annotate": parser,
        **settings,
    }
    return DataConfig(sources=[str(place)], **settings)


def annotated_loader(
    data: Path, views: list[ViewSpec], workers: int = 0, batch: int = 32, steps: int = 6
) -> Loader:
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(ShardReader(data).tokenizer_path))
    return make_loader(
        data, vocabulary, seed=5, global_batch=batch, lanes=4, views=views, workers=workers, stop_step=steps,
        max_length=24,
    )  # fmt: skip
