"""Configuration of each objective: its losses' weights, and its hyper-parameters.

Hyper-parameters default to the papers' values for BERT-base; the recipes under configs/ say where each is
from.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pretrain.common.errors import UserError
from pretrain.common.run_folder import export_of
from pretrain.common.typed_values import NONE_IS_A_VALUE, OWN_WORDS

Reading = Literal["code", "paper"]
"""What the public code computes, or what the paper prints."""


def _export(named: str) -> str:
    try:
        return named if named in ("", "none", "self") else export_of(named)
    except UserError as error:
        raise PydanticCustomError(OWN_WORDS, "{said}", {"said": str(error)}) from None


ModelName = Annotated[str, AfterValidator(_export)]
"""A run, of which its export is taken, an export, folder or hub name; of a guide also none or self."""


class Section(BaseModel):
    model_config = ConfigDict(
        use_attribute_docstrings=True, extra="forbid", validate_assignment=True, allow_inf_nan=False
    )

    former: ClassVar[dict[str, Any]] = {}
    """Key that earlier versions wrote -> the value that says what is done now (...: any does). Such a key is
    left out."""

    @classmethod
    def renewed(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the section, and those in it, as this version writes them: without `former` keys."""
        same = {key for key, value in cls.former.items() if value is ... or settings.get(key) == value}
        settings = {key: value for key, value in settings.items() if key not in same}
        for name, field in cls.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Section) and isinstance(settings.get(name), dict):
                settings[name] = kind.renewed(settings[name])
        return settings

    @model_validator(mode="before")
    @classmethod
    def _renewed(cls, settings: Any) -> Any:
        return cls.renewed(settings) if isinstance(settings, dict) else settings

    @field_validator("*")
    @classmethod
    def _at_home(cls, value: Any) -> Any:
        return Path(os.path.expanduser(value)) if isinstance(value, Path) else value


def refuse(holds: object, message: str) -> None:
    """Raise ValueError with the message if a condition holds."""
    if holds:
        raise ValueError(message)


class Term(Section):
    """A sentence-level loss and its weight."""

    steadier: ClassVar[dict[str, str]] = {"temperature": "raise"}
    """Setting -> which way to move it if its loss or gradient is not finite. These may change when a run
    is resumed."""

    weight: float = Field(1.0, ge=0)
    """weight of its loss, a mean over the global batch"""

    def effective(self, name: str) -> Any:
        """Return the value of a setting; if it is not given, the reading's."""
        return getattr(self, name)

    @property
    def loss_weights(self) -> list[float]:
        """The weights of all its losses."""
        names = [name for name in type(self).model_fields if name == "weight" or name.endswith("_weight")]
        return [self.effective(name) for name in names]


class ContrastiveTerm(Term):
    """A term with a softmax over similarities."""

    temperature: float = Field(0.05, gt=0)
    """divides the cosines before the softmax"""


class FalseNegativesConfig(Section):
    """False negatives of every contrastive loss, left out by a guide (GISTEmbed, Solatorio 2024)."""

    guide: Annotated[ModelName, NONE_IS_A_VALUE] = "none"
    """whose similarities decide which candidates are no negatives of an anchor: none; self, the vectors in
    use of the model that is trained; or those of another encoder: a run, folder or hub name, with the
    tokenizer of the data"""
    margin: float = Field(0.0, gt=-2, lt=2)
    """a candidate is left out if its similarity exceeds that of the positive minus the margin; below 0:
    only if it exceeds it by so much"""
    strategy: Literal["absolute", "relative"] = "absolute"
    """the margin is a cosine, or a share of the positive's similarity"""

    @property
    def model(self) -> str | None:
        """The encoder that guides, if it is another than the trained one."""
        return None if self.guide in ("none", "self") else self.guide


class MaskedLanguageConfig(Section):
    weight: float = Field(1.0, ge=0)
    """weight of the masked-language loss, beside any objective"""
    rate: float = Field(0.15, gt=0, lt=1)
    """share of tokens predicted (never special ones)"""
    later_rates: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0, lt=1)]] = {}
    """the rate from a step on: '{800: 0.15, 950: 0.05}'; none: one rate"""
    rate_change: Literal["steps", "linear"] = "steps"
    """steps: a later rate begins at its step; linear: it is reached there, evenly"""
    mask: float = Field(0.8, ge=0, le=1)
    """of these, the share replaced by [MASK]"""
    random: float = Field(0.1, ge=0, le=1)
    """of these, the share replaced by a random token"""
    copies: int = Field(1, ge=0, le=4)
    """maskings of the same sequence, losses summed; 2 is CLEAR's 'Double MLM' baseline"""
    initial_bias: Literal["zero", "frequencies"] = "zero"
    """the head's bias if weights are random. frequencies: the log of the tokens' frequencies, which masked
    language modelling otherwise learns first, by making all vectors alike"""


class ContrastiveConfig(ContrastiveTerm):
    """CLEAR's NT-Xent."""

    temperature: float = Field(0.1, gt=0)
    """divides the cosines before the softmax; CLEAR does not give it"""
    projection_layers: int = Field(2, ge=0, le=3)
    """layers of the projection head g; 0: none"""
    projection_hidden: int | None = None
    """hidden width of g; none: hidden_size"""
    projection_size: int = Field(128, ge=2)
    """output width of g"""
    projection_batch_norm: bool = False
    """batch norm, over the whole global batch and both views, in g's hidden layers; takes away what all
    sentence vectors share"""


class SimcseConfig(ContrastiveTerm):
    """SimCSE (Gao et al. 2021)."""

    form: Literal["one-direction", "symmetric", "2n-2"] = "one-direction"
    """one-direction: rows of view 1 against view 2, N-1 negatives (the public code); symmetric: both
    directions (CLIP); 2n-2: NT-Xent"""
    head: Literal["mlp", "batch-norm", "none"] = "mlp"
    """mlp: a new d x d layer with tanh (the public code); batch-norm: that of DiffCSE, AugCSE and V-advCSE"""
    keep_head: bool = False
    """whether the sentence vector that is evaluated and exported is the head's output (the public code for
    supervised models) or what enters it (unsupervised ones, --mlp_only_train)"""
    hard_negatives: Annotated[int, Field(ge=1)] | bool = False
    """supervised: each of the data's columns `negative`, `negative2` ... has a hard negative for each record,
    which is a negative of every record (one-direction only); a number: that many columns"""
    positives: Annotated[int, Field(ge=1)] | bool = 1
    """positives of a record, from the columns positive, positive2 ... (data.prepare.positives together): the
    mean of their losses (one-direction only); true: all that the data has"""
    in_batch: bool = True
    """whether other records' texts are negatives; false: the record's own hard negatives alone"""
    hard_negative_logit: float = 0.0
    """constant added to the logits of a record's own hard negatives; the public code's hard_negative_weight,
    0: weight 1"""

    @property
    def several(self) -> bool:
        """Whether a record may have more than one positive."""
        return self.positives is True or self.positives > 1

    @model_validator(mode="after")
    def _head_and_form_fit(self) -> Self:
        form, head = self.form, self.head
        refuse(self.keep_head and head != "mlp", f"objective.simcse.keep_head needs head mlp, not {head}")
        for key, wanted in (("hard_negatives", self.hard_negatives), ("positives", self.several)):
            one_way = f"objective.simcse.{key} needs objective.simcse.form=one-direction, not {form}"
            refuse(wanted and form != "one-direction", one_way)
        alone = not self.in_batch and not self.hard_negatives
        refuse(alone, "objective.simcse.in_batch=false leaves no negatives: set hard_negatives beside it")
        return self


class VasclConfig(ContrastiveTerm):
    """VaSCL (Zhang et al. 2022)."""

    steadier: ClassVar[dict[str, str]] = {
        "temperature": "raise",
        "radius": "lower",
        "neighbourhood_weight": "lower",
    }

    neighbours: int = Field(16, ge=1)
    """K nearest in the global batch; not in the paper, 16 in the code"""
    radius: float = Field(15.0, gt=0)
    """length of the virtual augmentation; 15 for base models, 30 for large ones"""
    projection_size: int = Field(128, ge=2)
    """output width of the two-layer head"""
    neighbourhood_weight: float = Field(1.0, ge=0)
    """weight of the neighbourhood loss beside the instance loss's"""
    reading: Reading = "code"
    """code: the neighbourhood loss trains the head alone (its input is detached); neighbours by dot product,
    start on a cube; paper: it trains the encoder too; by cosine, a Gaussian"""


class AugcseConfig(ContrastiveTerm):
    """AugCSE (Tang et al. 2022)."""

    steadier: ClassVar[dict[str, str]] = {"temperature": "raise", "discriminator_weight": "lower"}

    discriminator_weight: float = Field(5e-3, ge=0)
    """lambda, the weight of the discriminator's loss; 0: no discriminator (the paper's ablation)"""
    alpha: float = -1.0
    """factor on the discriminator's gradient where it enters the encoder: -1 antagonistic, 1 cooperative"""
    alpha_schedule: Literal["constant", "annealed"] = "constant"
    """annealed: alpha x (2 / (1 + exp(-10 p)) - 1), p the share of training done (Ganin et al. 2016)"""
    labels: Literal["augmentation", "bool", "order"] = "augmentation"
    """what the discriminator tells: which augmentation, whether any, or which of two came first"""
    reading: Reading = "code"
    """code: discriminator 2d-4d-labels, tanh on the logits, and a symmetric contrastive loss always; paper:
    discriminator of its listing A.5, and symmetric only if the positive is augmented"""
    positive: Literal["original", "augmented"] = "original"
    """original: the same sentence with other dropout (the code's default); augmented: the augmentation itself
    (the paper's 'positive' variants)"""


# -- V-advCSE's readings: what each fixes of that which the paper leaves open ---------------


@dataclass(frozen=True)
class AdversarialReading:
    """All that `objectives.vadvcse` has to know; None if a reading has no such number.

    The paper (Ko) prints algorithm 1, the divergences (equations 11 to 14) and closed forms of the worst
    noise (appendix A). It does not print sigma, epsilon, eta, the norm of the best run, over what a norm is
    taken, or what p(y | x) is of a model that has no y: here the features' softmax. A reading answers the
    rest.

    adversarial_weight: lambda. sigma: standard deviation of the first noise on the word embeddings.
    step_size: eta. norm, scope, projection: of `project_noise`, over a token's embedding or all of a
    sequence's. radius: epsilon, as a share of the size of the sequence's own word embeddings.
    form, reduction: of the `divergence`, and of those of a batch's sentences.
    clean_gradient: whether the clean output learns too, or is a constant.
    """

    adversarial_weight: float
    sigma: float
    step_size: float | None
    norm: Literal["inf", "l2"]
    scope: Literal["token", "sequence"]
    projection: Literal["smart", "ball", "closed-form"]
    radius: float | None
    form: Literal["packaged", "printed"]
    reduction: Literal["sum", "mean"]
    clean_gradient: bool


_SMART = AdversarialReading(
    adversarial_weight=1e-6,
    sigma=1e-5,
    step_size=1e-3,
    norm="inf",
    scope="token",
    projection="smart",
    radius=None,
    form="packaged",
    reduction="sum",
    clean_gradient=True,
)
_PRINTED = AdversarialReading(
    adversarial_weight=1e-3,
    sigma=1e-2,
    step_size=1.0,
    norm="l2",
    scope="sequence",
    projection="ball",
    radius=0.05,
    form="printed",
    reduction="mean",
    clean_gradient=False,
)
ADVERSARIAL_READINGS = {
    "smart-package": _SMART,
    "algorithm-1": _PRINTED,
    "appendix-A": replace(_PRINTED, projection="closed-form", norm="inf", step_size=None),
}


class VadvcseConfig(ContrastiveTerm):
    """V-advCSE (Ko, Virtual Adversarial Contrastive Learning for Sentence Embeddings)."""

    steadier: ClassVar[dict[str, str]] = {"temperature": "raise", "adversarial_weight": "lower"}

    reading: Literal["smart-package", "algorithm-1", "appendix-A"] = "smart-package"
    """how the paper is read in what it leaves open: smart-package: as the public packages do it, inert with
    their numbers; algorithm-1, appendix-A: as printed there (docs/objectives.md)"""
    adversarial_weight: float | None = Field(None, ge=0)
    """lambda, the weight of the virtual adversarial loss; none: the reading's"""
    divergence: Literal["js", "kl", "symmetric-kl"] = "js"
    """between clean and perturbed output; js is the paper's best"""
    distribution: Literal["projection", "vector"] = "projection"
    """whether outputs are of the projected or of the raw sentence vector"""
    steps: int = Field(1, ge=1)
    """K, the ascent steps that make the noise"""
    sigma: float | None = Field(None, gt=0)
    """standard deviation of the first noise on the word embeddings; none: the reading's"""
    step_size: float | None = Field(None, gt=0)
    """eta, the factor on the gradient in an ascent step; none: the reading's"""
    norm: Literal["inf", "l2"] | None = None
    """norm by which the noise is projected; none: the reading's"""
    radius: float | None = Field(None, gt=0)
    """epsilon, a share of the size of the sentence's word embeddings; none: the reading's"""

    @property
    def resolved(self) -> AdversarialReading:
        """Return what the reading fixes, with the numbers that are set here in place of its own."""
        names = ("adversarial_weight", "sigma", "step_size", "norm", "radius")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(ADVERSARIAL_READINGS[self.reading], **given)

    def effective(self, name: str) -> Any:
        value = getattr(self, name)
        return getattr(self.resolved, name, None) if value is None else value

    @model_validator(mode="after")
    def _reading_has_what_is_set(self) -> Self:
        for name in ("step_size", "radius"):
            value, own = getattr(self, name), getattr(ADVERSARIAL_READINGS[self.reading], name)
            text = f"objective.vadvcse.{name}={value}: {self.reading} has none; set objective.vadvcse.reading"
            refuse(value is not None and own is None, text)
        return self


class SdaConfig(ContrastiveTerm):
    """SDA (Zhu et al., Simple Discrete Augmentation): the own negation as a relaxed negative."""

    margin: float = Field(0.5, ge=0)
    """delta, by which the cosine of the own negation is lowered; best .5, with dn .3"""
    negatives: bool = True
    """use the negation; false is the paper's ablation without negatives"""


class DiffcseConfig(ContrastiveTerm):
    """DiffCSE (Chuang et al. 2022)."""

    steadier: ClassVar[dict[str, str]] = {"temperature": "raise", "replaced_token_weight": "lower"}

    replaced_token_weight: float = Field(0.005, ge=0)
    """lambda, the weight of replaced-token detection"""
    generator: ModelName | None = None
    """masked language model that edits the sentences: a run, folder or hub name, with the same vocabulary
    (paper: distilbert-base-uncased); required"""
    mask_rate: float = Field(0.3, gt=0, lt=1)
    """share of tokens masked for the generator"""
    reading: Reading = "code"
    """code: the generator's likeliest token at every position; paper: one sampled from it, at masked
    positions only"""


class EsimcseConfig(ContrastiveTerm):
    """ESimCSE (Wu et al. 2022): word repetition (augmentation `repeat`) and a momentum queue."""

    queue: float = Field(2.5, ge=0)
    """length of the queue of negatives, in global batches; 0: none"""
    momentum: float = Field(0.995, gt=0, lt=1)
    """share of its own weights that the encoder which fills the queue keeps at a step"""


class FrozenTerm(Term):
    """Nearness to a frozen encoder."""

    steadier: ClassVar[dict[str, str]] = {"weight": "lower"}

    model: ModelName | None = None
    """the frozen encoder: a run, folder or hub name, with the tokenizer of the data; none: model.init
    for retain; distill must name one"""


class DistillConfig(FrozenTerm):
    """Nearness to the vectors, or to the similarities, of a frozen teacher."""

    loss: Literal["mse", "cosine", "margin", "kl"] = "mse"
    """of vectors: mse, cosine. Of similarities: margin, positive's less negative's (MarginMSE); kl, of the
    softmax over the batch's positives"""
    temperature: float = Field(0.05, gt=0)
    """loss kl: divides the cosines of both encoders"""


class RetainConfig(FrozenTerm):
    """Nearness to the vectors of the start, or of another frozen encoder."""

    former: ClassVar = {"temperature": ...}

    loss: Literal["mse", "cosine"] = "cosine"
    """mean squared difference of the vectors, or 1 - cosine"""


class ScoredConfig(ContrastiveTerm):
    """Pairs with a score of how alike their texts are."""

    loss: Literal["cosent", "cosine"] = "cosent"
    """cosent: a pair of a lower score has the lower cosine (Su 2022), over all pairs of the global batch;
    cosine: the mean squared difference of cosine and score"""
    highest: float = Field(1.0, gt=0)
    """loss cosine: the score of texts that mean the same, by which scores are divided; 5 for STS"""


class DeclutrConfig(ContrastiveTerm):
    """DeCLUTR (Giorgi et al. 2021): spans of the same document; give the views the augmentation `span`."""

    positives: int = Field(2, ge=1, le=8)
    """positive spans of an anchor, averaged"""
