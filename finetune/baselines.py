"""Baselines without a network: what a trained encoder must beat, as folders that sentence-transformers loads.

    python -m finetune.baselines lsa --data PREPARED --out FOLDER        latent semantic analysis of the training corpus
    python -m finetune.baselines averaged --model MODEL --out FOLDER     the mean of a model's input word vectors

Both are one vector a token of the vocabulary, and the mean of them is the sentence's. For LSA (Deerwester and others 1990)
that is the usual folding-in up to length, which a cosine does not see: a sentence's tf-idf row times the right singular
vectors is the sum, over its tokens, of idf times the token's row of them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from scipy.sparse import linalg
from sklearn.decomposition import TruncatedSVD
from transformers import AutoTokenizer

from pretrain.command import run
from pretrain.errors import UserError


def lsa_vectors(data: str | Path, dimensions: int = 256, sentences: int = 200_000, seed: int = 1) -> np.ndarray:
    """float32[V, dimensions]: idf times the right singular vectors of the tf-idf matrix of the corpus.

    Args:
        data: prepared data; its first `sentences` sequences of the training split are used (they are shuffled).
        dimensions: kept of the singular value decomposition (randomized, `seed`).

    tf is the count; idf is 1 + ln((1 + N) / (1 + df)), scikit-learn's smooth one; rows have length 1, as there. Special tokens
    count nothing.
    """
    counts, special = _counts(Path(data), sentences)
    if dimensions >= min(counts.shape):
        raise UserError(f"--dimensions {dimensions}: must be below {min(counts.shape)}, the smaller side of sentences x tokens")
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = 1 + np.log((1 + counts.shape[0]) / (1 + frequency))
    idf[special] = 0
    weighted = counts.multiply(idf).tocsr()
    norms = linalg.norm(weighted, axis=1)
    weighted = sparse.diags(1 / np.where(norms == 0, 1, norms)) @ weighted
    right = TruncatedSVD(dimensions, random_state=seed).fit(weighted).components_
    return (idf[:, None] * right.T).astype(np.float32)


def averaged_vectors(model: str) -> np.ndarray:
    """float32[V, d]: the input word vectors of a Hugging Face folder, an export, a run or a hub name."""
    from finetune.embed import load_model

    encoder, _ = load_model(model)
    return encoder.lm.get_input_embeddings().weight.detach().float().cpu().numpy()


def save(vectors: np.ndarray, tokenizer_folder: str | Path, out: str | Path) -> None:
    """Write a sentence-transformers folder whose sentence vector is the mean of `vectors` over the sentence's tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.backend_tokenizer.no_truncation()
    rows = torch.zeros(max(len(tokenizer), len(vectors)), vectors.shape[1])
    rows[: len(vectors)] = torch.from_numpy(vectors)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, rows)], device="cpu")
    model.save_pretrained(str(out), create_model_card=False)


def _counts(data: Path, sentences: int) -> tuple[sparse.csr_matrix, list[int]]:
    """Token counts [sentences, V] of the training split, and the ids of special tokens."""
    from pretrain.shards import ShardReader

    reader = ShardReader(data)
    tokenizer = AutoTokenizer.from_pretrained(reader.tokenizer_path)
    tokens, lengths = [], []
    for chunk in range(reader.num_chunks):
        ragged = reader.read(chunk).sequences
        tokens.append(ragged.ids)
        lengths.append(np.diff(ragged.offsets))
        if sum(map(len, lengths)) >= sentences:
            break
    size = np.concatenate(lengths)[:sentences]
    ids = np.concatenate(tokens)[: size.sum()]
    rows = np.repeat(np.arange(len(size)), size)
    matrix = sparse.csr_matrix((np.ones(len(ids), np.float32), (rows, ids)), shape=(len(size), len(tokenizer)))
    matrix.sum_duplicates()
    return matrix, list(tokenizer.all_special_ids)


def main(kind: str, out: str = "", data: str = "", model: str = "", dimensions: str = "256", sentences: str = "200000") -> int:
    """Make a baseline's folder; judge it like any model: `python -m finetune.senteval FOLDER`.

    Args:
        kind: lsa (latent semantic analysis of a prepared corpus) or averaged (mean of a model's input word vectors).
        out: folder to write.
        data: for lsa, a prepared folder (python -m pretrain.prepare).
        model: for averaged, a run, an export, a Hugging Face folder or a hub name.
        dimensions: of lsa. sentences: of the corpus that lsa reads.
    """
    if not out:
        raise UserError("give --out, the folder to write")
    for name, value in (("dimensions", dimensions), ("sentences", sentences)):
        if not value.isdecimal() or int(value) < 2:
            raise UserError(f"--{name} {value!r}: give a whole number, 2 or more")
    if kind == "lsa":
        if not data:
            raise UserError("lsa needs --data, a prepared folder (python -m pretrain.prepare)")
        vectors, tokenizer = lsa_vectors(data, int(dimensions), int(sentences)), Path(data) / "tokenizer"
    elif kind == "averaged":
        if not model:
            raise UserError("averaged needs --model, an encoder whose word vectors are averaged")
        from finetune.models import resolve_run

        vectors, tokenizer = averaged_vectors(model), resolve_run(model)[0]
    else:
        raise UserError(f"unknown baseline {kind!r}; choose lsa or averaged")
    save(vectors, tokenizer, out)
    print(f"{kind}: {vectors.shape[0]:,} tokens x {vectors.shape[1]} in {out}")
    return 0


if __name__ == "__main__":
    run(main, positional=1)
