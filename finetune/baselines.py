"""Make a baseline without training, which a trained encoder must beat, for sentence-transformers to load.

    clearly baselines whitening MODEL --source TEXT --out FOLDER    sentence vectors, whitened

Whitening (Su and others 2021) is a linear map of a model's vectors after which, over the sentences that it
was fitted on, their mean is 0 and their covariance the identity.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.encoders.padded import open_padded, open_sentence_transformer
from finetune.encoders.source import OWN_MODULES, ModelSource, names_function, resolve
from finetune.flags import Model, Pooling
from pretrain.benchmarks.files import evenly_spaced, read_sentences
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import discard, library_errors, make_folder, put_in_place, remove_tree

SPECTRUM_FLOOR = 1e-6
"""A singular value below this share of the largest is the rounding of a float32 encoder, and counts as 0."""


def _write(model: Any, out: Path) -> None:
    """Save a sentence-transformers model as a folder, whole or not at all."""
    if out.exists() and not (out.is_dir() and ((out / "modules.json").is_file() or not any(out.iterdir()))):
        raise UserError(f"--out {out} exists and is no sentence-transformers folder; name another")
    hidden = out.with_name(f".{out.name}.tmp")
    try:
        make_folder(out.parent)
        remove_tree(hidden)
        with library_errors():
            model.save_pretrained(str(hidden), create_model_card=False)
        put_in_place(hidden, out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; name another --out") from error
    finally:
        discard(hidden)


def whitening(vectors: np.ndarray, dimensions: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return W float64[d, k] and b of the map x -> x W + b that whitens vectors (Su et al. 2021, section 3).

    W = U diag(1 / sqrt(s)), its first `dimensions` columns (0: all that vary), where U diag(s) U' is the
    covariance, s falling; b = -mean W.
    """
    mean = vectors.mean(0, dtype=np.float64)
    covariance = np.zeros((len(mean), len(mean)))
    for start in range(0, len(vectors), 8192):  # not a float64 copy of them all
        centred = vectors[start : start + 8192] - mean
        covariance += centred.T @ centred
    variances, basis = np.linalg.eigh(covariance / len(vectors))
    # Variance at the rounding of float32 vectors is none (a layer norm leaves one such direction): divided
    # by, it would be noise.
    varying = int((variances > variances[-1] * SPECTRUM_FLOOR**2).sum()) if variances[-1] > 0 else 0
    if dimensions > varying or not varying:
        vary = f"{len(vectors):,} sentences vary in {varying} of {len(mean)} dimensions"
        raise UserError(f"the vectors of {vary}: give fewer --dimensions, or more sentences")
    kept = slice(None, -1 - (dimensions or varying), -1)
    matrix = basis[:, kept] / np.sqrt(variances[kept])
    return matrix, -mean @ matrix


def save_whitened(model: EmbeddingModel, matrix: np.ndarray, bias: np.ndarray, out: str | Path) -> None:
    """Write the model with the map behind it, a linear layer with bias, as a sentence-transformers folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    layer = Dense(
        *matrix.shape,
        activation_function=torch.nn.Identity(),
        init_weight=torch.from_numpy(matrix.T.astype(np.float32)),
        init_bias=torch.from_numpy(bias.astype(np.float32)),
    )
    assert model.source is not None  # a function, which has none, cannot be whitened
    if model.pooling in (OWN_MODULES, model.trained_pooling):  # with its prompts
        base = open_sentence_transformer(model.source, None)
    else:
        base = open_padded(model.source, model.pooling, model.longest)
    whitened = SentenceTransformer(
        modules=[*base, layer],
        device="cpu",
        prompts=base.prompts,
        default_prompt_name=base.default_prompt_name,
    )
    _write(whitened, Path(out))


Dimensions = Annotated[int, Field(ge=2)]


def whiten(
    model: Model,
    *,
    source: str,
    out: str,
    pooling: Pooling = "",
    dimensions: Dimensions | None = None,
    sentences: Dimensions = 200_000,
) -> int:
    """Make a folder of a model with a linear map behind it: mean 0 and covariance 1 over sentences.

    Args:
        source: a file of the sentences that it is fitted on, one a line (.gz too).
        out: folder to write; evaluate it like any model: clearly senteval OUT.
        pooling: as in other evaluations; Su et al.: first-last.
        dimensions: kept of those that vary; without it, all.
        sentences: of the source, at most.
    """
    from finetune.encoders.embed import POOLER

    found = model if names_function(model) else resolve(model)
    if isinstance(found, ModelSource) and Path(out).resolve() == Path(found.location).resolve():
        raise UserError(f"--out {out} is the model's own folder; name another")
    # before the model: a missing file should not cost the loading
    texts = evenly_spaced(read_sentences(Path(source), "source"), sentences)
    opened = open_model(found, pooling)
    if opened.source is None or opened.pooling == POOLER:
        what = "a function" if opened.source is None else "evaluated by its pooler"
        raise UserError(f"{opened.name} is {what}: no whitened folder can be made of it")
    vectors = opened.encode(texts)
    matrix, bias = whitening(vectors, dimensions or 0)
    save_whitened(opened, matrix, bias, out)
    kept = f"{matrix.shape[1]} of {matrix.shape[0]} dimensions"
    print(f"whitening: {kept}, {opened.pooling} pooling, fitted on {len(texts):,} sentences, in {out}")
    return 0


if __name__ == "__main__":
    cli.run(whitening=whiten)
