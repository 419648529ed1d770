"""Flags that mean the same in every evaluation."""

from typing import Annotated, Literal

from pydantic import Field

Model = Annotated[
    str,
    Field(description="run, export, Hugging Face or sentence-transformers model (folder or name), file.py:f"),
]
Encoder = Annotated[
    str,
    Field(description="run, export or Hugging Face model (folder or name), of BERT, RoBERTa or ModernBERT"),
]
Pooling = Annotated[
    str,
    Field(
        description="cls, mean, first-last, embedding-last, last-two; default: the pooling that the model "
        "was trained with"
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
