"""Flags that mean the same in every evaluation."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from finetune.encoders.source import require_model
from pretrain.common.cli import Count, Natural

Model = Annotated[
    str,
    AfterValidator(require_model),
    Field(description="run, export, Hugging Face or sentence-transformers model (folder or name), file.py:f"),
]
Encoder = Annotated[
    str,
    AfterValidator(require_model),
    Field(description="run, export or Hugging Face model (folder or name), of BERT, RoBERTa or ModernBERT"),
]
Pooling = Annotated[
    str,
    Field(
        description="cls, mean, first-last, embedding-last, last-two; default: the pooling that the model "
        "was trained with (`words` has no other)"
    ),
]
EvalData = Annotated[str, Field(description="folder of the benchmarks (default: CLEAR_DATA)")]
Precision = Annotated[
    Literal["auto", "fp32", "bf16"], Field(description="auto (bf16 on a GPU, else fp32), fp32 or bf16")
]
VectorPrecision = Annotated[
    Literal["fp32", "bf16"],
    Field(description="of the encoder: fp32, or bf16, which is about twice as fast and rounds vectors"),
]
Out = Annotated[str, Field(description="folder for results; default: RUN/report or results/MODEL")]


class EncodingFlags(BaseModel):
    """How an encoder makes vectors."""

    pooling: Pooling = ""
    precision: VectorPrecision = "fp32"


class Derivation(BaseModel, frozen=True, use_attribute_docstrings=True):
    """What to make of an encoder by what is fitted on a text."""

    pooling: str = ""
    """sif or idf: a mean over tokens by weights from the counts of --text; or, of a model that brings none,
    its pooling"""
    whiten: Natural | None = None
    """whiten vectors over --text, and keep the first N components; 0: all that vary"""
    power: Annotated[float, Field(gt=0, le=1)] | None = None
    """of the whitening: 0.5 divides a component by the root of its standard deviation (default: 1)"""
    remove: Natural = 0
    """remove the first N principal components of the vectors of --text, and the mean"""
    static: Literal["", "encoded", "input"] = ""
    """one vector per token in place of the encoder: "encoded" alone, or the "input" rows; with --whiten or
    --pooling sif or idf these are whitened, or times their weights, 8 MB in all"""
    text: str = ""
    """what this is fitted on, as `clearly prepare` reads it; or prepared data"""
    sentences: Count | None = None
    """of the text, at most, that --whiten and --remove encode (default: 10,000)"""


AS_IT_IS = Derivation()  # nothing is fitted
