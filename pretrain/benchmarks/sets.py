"""Declare a data set: its files, and where to get them.

Every evaluation declares its own sets beside the code that reads them, as a tuple `DATA_SETS`;
`finetune.data.catalogue` gathers them, and `clearly benchmarks check DIR` looks for their files. How many
rows they hold an evaluation compares with what was published (`finetune.results.Evaluation.expect_size`).
"""

from dataclasses import dataclass

SENTEVAL = (
    "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/senteval.tar "
    "(its downstream/)"
)
"""Where most of SentEval's files come from."""


@dataclass(frozen=True)
class DataSet:
    """A set and its files below the data folder."""

    name: str
    """GROUP/NAME, after the folders that it lies in."""
    files: tuple[str, ...]
    origin: str
    """Where it comes from, for users who lack it."""

    @property
    def group(self) -> str:
        return self.name.split("/")[0]
