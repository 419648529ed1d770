"""The flags of `clearly geometry` that say what is measured, and on which data; free of torch."""

from pydantic import BaseModel, Field

from augment.spec.grammar import parse
from finetune.flags import EvalData
from pretrain.common import cli


class GeometryOptions(BaseModel, frozen=True, use_attribute_docstrings=True):
    """What is measured, and on which data."""

    eval_data: EvalData = ""
    neighbours: cli.Names = ("stackoverflow",)
    """files of clustering/ for the neighbourhoods, by commas; VaSCL has stackoverflow alone"""
    text_file: str = ""
    """sentences to augment, one per line (.gz too); default: those of STS-B"""
    sentences: int = Field(1000, ge=10, description="number of sentences to augment, taken evenly")
    aug: str = ""
    """augmentations, separated by semicolons: "del-span,reorder;subs;yoda"; all: every one that needs no
    model of its own; default: those of tokens"""
    parser: str = ""
    """for augmentations of text, a spaCy pipeline, by name or folder; default: $CLEAR_PARSER, else an
    installed one"""
    synonyms: str = Field("", description="table or WordNet for subs; default: as in training")
    label: str = ""
    """written behind the results' name, so that another set of measures stays beside this one"""
    seed: int = Field(0, ge=0, lt=2**31, description="of augmentations and samples")

    @property
    def augmentations(self) -> list[str]:
        """The specifications that `aug` names."""
        if self.aug == "all":
            from finetune.geometry.augmentations import every_specification

            return every_specification()
        named = [one.strip() for one in self.aug.split(";") if one.strip()]
        for specification in named:
            parse(specification)
        return named
