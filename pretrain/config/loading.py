"""How a run reads its data: the section `data` of a configuration."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pretrain.config.data import DataConfig, DataSet
from pretrain.config.terms import Section, refuse


class LoadingConfig(Section):
    folder: Path | None = None
    """prepared data (manifest.json inside); none: data/NAME, prepared on first use from data.prepare. Flag
    --data"""
    remote: str | None = None
    """URL of a folder of prepared data (https://, s3://, gs://, ...): --data names a folder here for its
    manifest, its tokenizer, and the chunks that were read last (docs/data.md)"""
    remote_cache: float = Field(20.0, ge=0)
    """gigabytes of those chunks to keep"""
    sets: list[DataSet] = Field(default_factory=list)
    """several folders of prepared data in place of one, each with @WEIGHT or none: a global batch is of one
    of them (docs/data.md). The first one's tokenizer and held-out split are the run's"""
    temperature: float = Field(1.0, gt=0)
    """T of data.sets without weights: a set of n sequences is read as often as n^(1/T) says; 1: by size,
    larger: more equally"""
    prepare: DataConfig = Field(default_factory=DataConfig)
    """how to prepare the data if the folder has none"""
    cache: int = Field(0, ge=0)
    """0: all views are augmented again in every epoch; k: positives, negatives and labelled augmentations are
    made once, k of every sentence, and kept beside the data (pretrain.cache)"""
    prompts: dict[str, str] = Field(default_factory=dict)
    """role of a view -> text before every sentence of it, as {anchor: 'query: ', positive: 'passage: '}; it
    is never augmented or masked. Kept in the export (docs/data.md)"""
    prompts_pooled: bool = True
    """false: the mean over a sentence's tokens leaves out its prompt, and the first token with it
    (include_prompt of sentence-transformers)"""
    lanes: int = Field(16, ge=1)
    """parallel streams that make up the data order: at least as many as the most ranks that the run should
    resume on, and a divisor of train.global_batch"""
    workers: int = Field(1, ge=0)
    """loader processes a rank; 0 loads in the training process"""
    damaged: Literal["refuse", "skip"] = "refuse"
    """a chunk whose hash is wrong: stop, or replace it by another and write that down"""

    @field_validator("sets", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @model_validator(mode="after")
    def _one_way_to_name_data(self) -> Self:
        other = "data.cache" if self.cache else "data.folder (--data)"
        two = self.sets and (self.folder is not None or self.cache)
        refuse(two, f"data.sets and {other} exclude each other: leave one of them out")
        folders = {one.folder.resolve() for one in self.sets}
        refuse(len(folders) < len(self.sets), "data.sets names a folder twice: give it a larger weight")
        some = len({one.weight is None for one in self.sets}) > 1
        refuse(some, "data.sets: give a weight (FOLDER@WEIGHT) to all sets, or to none")
        return self
