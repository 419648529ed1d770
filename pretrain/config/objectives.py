"""Configuration of what is learned: which objectives, in a sum, each with a section of its own."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from augment.core.errors import excerpt, nearest_name
from augment.core.own_code import OWN, require_allowed
from pretrain.common.errors import UserError
from pretrain.config import terms
from pretrain.config.terms import Section, refuse

OBJECTIVES = (
    *("mlm", "clear", "simcse", "vascl", "augcse", "vadvcse", "sda", "diffcse", "esimcse", "declutr"),
    *("retain", "distill", "scored"),
)
DISTILLING = ("retain", "distill")
WITHOUT_NEGATIVES = (*DISTILLING, "scored")
OF_CONTRASTIVE_LOSSES = ("false_negatives", "matryoshka", "scope")
"""Settings of every contrastive loss in the sum."""
OF_ALL_TERMS = ("start_step", "warmup_steps", "scope")
"""Settings of the whole sum, which earlier versions had in each objective's section."""


class ObjectiveConfig(Section):
    former: ClassVar = {"matryoshka_weights": []}

    name: str = Field(
        "clear",
        description="what is learned beside masked language: " + ", ".join(OBJECTIVES) + "; a sum of them "
        "(clear+vadvcse); or a class of your own, FILE.py:CLASS. Flag --objective",
    )
    start_step: int = Field(0, ge=0)
    """step at which the losses beside the masked-language loss begin"""
    warmup_steps: int = Field(0, ge=0)
    """steps over which their weights rise linearly from start_step"""
    scope: Literal["global", "local"] = "global"
    """negatives from the whole global batch, or from the same rank's share (for comparison)"""
    mask_duplicates: bool = True
    """equal texts in a global batch are no negatives of each other, nor are those of records that share an
    anchor or a positive, directly or by others"""
    false_negatives: terms.FalseNegativesConfig = Field(default_factory=terms.FalseNegativesConfig)
    matryoshka: tuple[int, ...] = ()
    """widths, such as 256,128,64: every contrastive loss is summed over vectors cut to each, so that the
    first coordinates of a vector are a vector; empty: the whole width alone"""
    view_dropout: bool = True
    """whether the encoder's dropout is on when views are embedded; masked language modelling keeps it. At
    depth it drowns what [CLS] says of a sequence"""
    keep_vectors: Literal["none", "float32", "float16"] = "none"
    """keep the vectors of the frozen encoder (teacher, start of retain, guide) beside the data, in this type,
    for all epochs and runs; not of augmented views, which are another text at every step"""
    mlm: terms.MaskedLanguageConfig = Field(default_factory=terms.MaskedLanguageConfig)
    contrastive: terms.ContrastiveConfig = Field(default_factory=terms.ContrastiveConfig)
    simcse: terms.SimcseConfig = Field(default_factory=terms.SimcseConfig)
    vascl: terms.VasclConfig = Field(default_factory=terms.VasclConfig)
    augcse: terms.AugcseConfig = Field(default_factory=terms.AugcseConfig)
    vadvcse: terms.VadvcseConfig = Field(default_factory=terms.VadvcseConfig)
    sda: terms.SdaConfig = Field(default_factory=terms.SdaConfig)
    diffcse: terms.DiffcseConfig = Field(default_factory=terms.DiffcseConfig)
    esimcse: terms.EsimcseConfig = Field(default_factory=terms.EsimcseConfig)
    declutr: terms.DeclutrConfig = Field(default_factory=terms.DeclutrConfig)
    retain: terms.RetainConfig = Field(default_factory=terms.RetainConfig)
    distill: terms.DistillConfig = Field(default_factory=terms.DistillConfig)
    scored: terms.ScoredConfig = Field(default_factory=terms.ScoredConfig)
    options: dict[str, Any] = Field(default_factory=dict)
    """settings of an objective of your own"""

    @classmethod
    def renewed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the section as this version writes it: `OF_ALL_TERMS` once, not in each objective's section.

        Raises UserError: the objectives of the sum had different values, and the sum has none.

        >>> ObjectiveConfig.renewed({"name": "sda", "sda": {"start_step": 8}, "simcse": {"start_step": 0}})
        {'name': 'sda', 'sda': {}, 'simcse': {}, 'start_step': 8}
        """
        settings = super().renewed(settings)
        sections = {name: dict(own) for name, own in settings.items() if isinstance(own, dict)}
        names = sections.keys() - {"options", "mlm"}
        parts = str(settings.get("name", "clear")).split("+")
        # an objective of one's own may read any section
        read = names if any(map(OWN.match, parts)) else {cls.section(part) for part in parts}
        for key in OF_ALL_TERMS:
            given = {name: sections[name].pop(key) for name in sorted(names) if key in sections[name]}
            used = {name: value for name, value in given.items() if name in read}
            if not used or key in settings:
                continue
            values = dict.fromkeys(sorted(read - {"mlm"}), cls.model_fields[key].default) | used
            if len(set(values.values())) > 1:
                conflict = ", ".join(f"objective.{name}.{key}={value}" for name, value in values.items())
                raise UserError(f"{conflict}: all objectives have the same now; set objective.{key} instead")
            settings[key] = next(iter(used.values()))
        return settings | sections

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        parts = name.split("+")
        for part in parts:
            if own := OWN.match(part):
                require_allowed(own["file"])
            elif part not in OBJECTIVES:
                near = nearest_name(part, OBJECTIVES)
                raise ValueError(
                    f"unknown objective {excerpt(part)}{f'; did you mean {near!r}?' if near else ''} There "
                    f"are {', '.join(OBJECTIVES)}, sums such as clear+vadvcse, and FILE.py:CLASS"
                )
        if len(set(parts)) < len(parts):
            raise ValueError(f"{name!r} names an objective twice")
        return name

    @model_validator(mode="after")
    def _something_to_learn(self) -> Self:
        terms, mlm = [getattr(self, section) for section in self.sections], self.mlm
        alone = terms and not self.masked_copies
        silent = self.parts == ("mlm",) and not self.masked_copies
        refuse(silent, "objective mlm needs objective.mlm.weight > 0 and objective.mlm.copies > 0")
        off = alone and not any(any(term.loss_weights) for term in terms)
        refuse(off, "every loss is switched off: set objective.mlm.weight, or another objective's weight")
        late = f"without the masked-language loss nothing is learned before step {self.start_step}"
        refuse(self.start_step and not self.masked_copies, f"{late}: leave objective.start_step at 0")
        both = f"objective.mlm.mask={mlm.mask} and objective.mlm.random={mlm.random}"
        refuse(mlm.mask + mlm.random > 1, f"{both} exceed 1 together")
        widths = self.matryoshka
        guided = self.false_negatives.guide != "none" and not set(self.parts) - {"mlm", *WITHOUT_NEGATIVES}
        refuse(guided, f"objective.false_negatives: {self.name} has no negatives; leave the guide out")
        apart = "simcse" in self.parts and self.simcse.several and not self.mask_duplicates
        refuse(apart, "objective.mask_duplicates=false would contrast a record's positives: set it to true")
        same = any(width < 1 for width in widths) or len(set(widths)) < len(widths)
        refuse(same, f"objective.matryoshka={list(widths)}: give different widths of 1 or more")
        return self

    @model_validator(mode="after")
    def _scope_has_what_it_needs(self) -> Self:
        if self.scope == "local":
            of_all = "objective.scope=local: "
            queue = "esimcse" in self.parts and self.esimcse.queue
            refuse(
                queue, f"{of_all}esimcse's queue holds vectors of all ranks; set objective.esimcse.queue to 0"
            )
            divergence = "distill" in self.parts and self.distill.loss == "kl"
            refuse(divergence, f"{of_all}loss kl is over texts of all ranks; leave it at global")
            refuse("scored" in self.parts, f"{of_all}scored compares pairs of all ranks; leave it at global")
        return self

    def rise(self, step: int) -> float:
        """Return the factor in [0, 1] on the weights of the losses beside the masked-language loss."""
        if step < self.start_step:
            return 0.0
        return min(1.0, (step - self.start_step + 1) / self.warmup_steps) if self.warmup_steps else 1.0

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the widths of the contrastive losses, widest first; empty: the whole width alone."""
        return tuple(sorted(self.matryoshka, reverse=True))

    @property
    def frozen(self) -> dict[str, str]:
        """Return key -> the frozen encoder that it names: of false negatives, or to be near to."""
        there = [part for part in DISTILLING if part in self.parts]
        named = {f"objective.{part}.model": getattr(self, part).model for part in there}
        if self.parts != ("mlm",):
            named |= {"objective.false_negatives.guide": self.false_negatives.model}
        return {key: model for key, model in named.items() if model is not None}

    @property
    def guide(self) -> str | None:
        """The frozen encoder beside the trained one; `frozen` names no two different ones."""
        return next(iter(self.frozen.values()), None)

    @property
    def guide_key(self) -> str:
        """The key that names `guide`."""
        return next(iter(self.frozen), "objective.false_negatives.guide")

    @staticmethod
    def section(part: str) -> str:
        """Return the section of an objective's settings."""
        return "contrastive" if part == "clear" else part

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the summands of the objective's name."""
        return tuple(self.name.split("+"))

    @property
    def sections(self) -> list[str]:
        """Return the sections of our objectives in the sum."""
        return [self.section(part) for part in self.parts if part in OBJECTIVES and part != "mlm"]

    @property
    def steadier(self) -> dict[str, str]:
        """Return, for the terms of the sum, dotted setting -> which way to move it (`Term.steadier`)."""
        ways = [(section, getattr(self, section).steadier) for section in self.sections]
        return {f"objective.{section}.{key}": way for section, own in ways for key, way in own.items()}

    @property
    def masked_copies(self) -> int:
        """Return how many maskings of a sequence the token-level loss needs."""
        return self.mlm.copies if self.mlm.weight > 0 else 0


def unused(name: str, keys: Iterable[str]) -> list[str]:
    """Return those of the dotted keys that no objective in the sum `name` reads.

    `objective.mlm` is everyone's. An objective of your own may derive from any of ours, so beside one
    nothing is unused.
    """
    parts = name.split("+")
    if any(map(OWN.match, parts)):
        return []
    others = {"options", *map(ObjectiveConfig.section, OBJECTIVES)}
    others -= {"mlm", *map(ObjectiveConfig.section, parts)}
    if parts == ["mlm"]:
        others |= {*OF_CONTRASTIVE_LOSSES, *OF_ALL_TERMS}
    return [key for key in keys if key.startswith("objective.") and key.split(".")[1] in others]


def readers(keys: Iterable[str]) -> str:
    """Name the objectives whose settings the dotted keys are."""
    own = {"contrastive": "clear", "options": "FILE.py:CLASS"}
    own |= dict.fromkeys(OF_ALL_TERMS, "another objective")
    own |= dict.fromkeys(OF_CONTRASTIVE_LOSSES, "objectives with a contrastive loss")
    sections = dict.fromkeys(key.split(".")[1] for key in keys)
    return " and ".join(dict.fromkeys(own.get(section, section) for section in sections))
