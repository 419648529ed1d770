"""What augmentations need of this machine, looked for before hours of preparation rather than after them."""

from collections.abc import Iterable
from pathlib import Path

from augment.spec.build import require
from augment.spec.grammar import loads_models, needs_synonyms
from augment.tokens.synonyms import find_synonyms, read_synonyms
from pretrain.common import cli
from pretrain.common.processes import run_module


def require_resources(specs: Iterable[str], synonyms: Path | str | None) -> None:
    """Look, without data, for what specifications need: WordNet, synonym table, models, word vectors.

    Models are named before any is loaded; then each is loaded once, in a process of its own, as training has
    no use for them.

    Raises:
        AugmentationError: something is missing; all that is, but for the table of synonyms, is one error.
        UserError: a model cannot be loaded; that process has said why.
    """
    specs = list(dict.fromkeys(specs))
    require(specs, load=False)
    if any(map(needs_synonyms, specs)):
        read_synonyms(synonyms or find_synonyms())
    with_models = [spec for spec in specs if loads_models(spec)]
    if with_models:
        run_module(
            "pretrain.cache.resources", with_models, f"Loading the models of {' and '.join(with_models)}"
        )


def _load(*specs: str) -> None:
    """Load the models of specifications."""
    require(specs)


if __name__ == "__main__":
    cli.run(_load)
