"""Make of an encoder what is taken along: weights of its tokens, a linear map behind it, a static table.

Each is fitted on text, nothing is trained, and each is a folder that sentence-transformers loads as it is:

| part | module of the library | vector of a sentence |
|---|---|---|
| `sif`, `idf` | `WordWeights` before `Pooling` | sum of w(t) h(t) over tokens, over the sum of w(t) |
| whitening (Su et al. 2021) | `Dense` | W (x - mean), covariance 1 over the text |
| first components removed (Mu and Viswanath 2018) | `Dense` | (I - U U') (x - mean) |
| static table (as model2vec) | `StaticEmbedding` | mean over tokens of one vector each |
| the same, whitened | `StaticEmbedding` | W (x - mean) of that mean x, in the rows themselves |

sif: w(t) = a / (a + p(t)), a = 0.001 (Arora, Liang and Ma 2017, equation 3), p(t): share of t among the
text's tokens. idf: w(t) = ln((1 + N) / (1 + n(t))) + 1, n(t) of the N texts have t (scikit-learn's, smooth).
A `Dense` stands before the `Normalize` of a model that scales its vectors.
"""

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.pretrained import pretrained, quiet_transformers
from augment.core.ragged import Ragged
from finetune.encoders.embed import PackedModel, embed_rows
from finetune.encoders.models import open_model, pooling_of
from finetune.encoders.padded import open_padded, open_sentence_transformer, tokenized
from finetune.encoders.source import OWN_MODULES, ModelSource, resolve
from finetune.flags import Derivation
from finetune.texts import read_split
from pretrain.benchmarks.files import evenly_spaced
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.data.manifest import MANIFEST
from pretrain.data.shards import ShardReader
from pretrain.export.sentence_transformers import weights_by_token
from pretrain.model.pooling import WORDS, sif_weights

MARK = "derived.txt"
"""A file of every folder that this module writes, which it may therefore replace."""
SIF, IDF = WEIGHTINGS = "sif", "idf"
ENCODED, INPUT = "encoded", "input"
SPECTRUM_FLOOR = 1e-6
"""A singular value below this share of the largest is the rounding of a float32 encoder, and counts as 0."""
MOST_SENTENCES = 10_000
"""That a map is fitted on, unless `sentences` says how many."""
ROWS_OF_A_CHUNK = 64
"""Of prepared data, at least, so that few chunks are read."""
TABLE_BYTES = 8_000_000
"""Most bytes of a static table, whose width follows."""


# -- counts and weights of tokens ---------------------------------------


@dataclass
class TokenCounts:
    """How often a text has each token, special ones included."""

    texts: int
    occurrences: np.ndarray
    """int64[V]"""
    texts_with: np.ndarray
    """int64[V]: texts that have the token, however often."""

    @classmethod
    def of(cls, parts: Iterable[Ragged], size: int) -> "TokenCounts":
        """Count the tokens of texts, some thousand at a time; size: of the vocabulary."""
        counts = cls(0, np.zeros(size, np.int64), np.zeros(size, np.int64))
        for part in parts:
            counts.texts += int((part.lengths > 0).sum())  # of a record's columns those that it has
            counts.occurrences += np.bincount(part.ids, minlength=size)
            owners = np.repeat(np.arange(len(part)), part.lengths)
            counts.texts_with += np.bincount(np.unique(owners * size + part.ids) % size, minlength=size)
        return counts

    def weights(self, kind: str) -> np.ndarray:
        """Return the weight of each token, float64[V]; kind: "sif" or "idf"."""
        if kind == IDF:
            return np.log((1 + self.texts) / (1 + self.texts_with)) + 1
        return sif_weights(self.occurrences)


def read_tokens(text: str | Sequence[str], model: Any, location: str) -> Iterator[Ragged]:
    """Yield the tokens of texts as a sentence-transformers model reads them, or those of prepared data.

    text: sentences; or the folder of prepared data, whose tokens must be the model's.
    """
    if not isinstance(text, str):
        prompt = model.prompts.get(model.default_prompt_name or "") or ""
        prompted, longest = [prompt + one for one in text], model.max_seq_length
        for part in tokenized(model.tokenizer, prompted, truncation=True, max_length=longest):
            yield Ragged.from_sequences(part["input_ids"])
        return
    reader = _open_prepared(text, model, location)
    for chunk in range(reader.num_chunks):
        yield reader.read(chunk).stored


def _open_prepared(data: str, model: Any, location: str) -> ShardReader:
    """Open prepared data, whose tokens must be the model's."""
    from transformers import AutoTokenizer

    from pretrain.model.encoder import check_tokenizer

    reader = ShardReader(data)
    check_tokenizer(len(model.tokenizer), pretrained(AutoTokenizer, reader.tokenizer_path), location)
    return reader


# -- linear maps --------------------------------------------------------


def whitening(vectors: np.ndarray, dimensions: int = 0, power: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return W float64[d, k] and b of the map x -> x W + b that whitens vectors (Su et al. 2021, section 3).

    W = U diag(1 / sqrt(s)^power), its first `dimensions` columns (0: all that vary), where U diag(s) U' is
    the covariance, s falling; b = -mean W. The paper's power is 1.
    """
    mean, variances, basis = _components(vectors)
    # Variance at the rounding of float32 vectors is none (a layer norm leaves one such direction): divided
    # by, it would be noise.
    varying = int((variances > variances[0] * SPECTRUM_FLOOR**2).sum()) if variances[0] > 0 else 0
    if dimensions > varying or not varying:
        vary = f"{len(vectors):,} sentences vary in {varying} of {len(mean)} dimensions"
        raise UserError(f"the vectors of {vary}: keep fewer, or give more sentences")
    kept = slice(dimensions or varying)
    matrix = basis[:, kept] / np.sqrt(variances[kept]) ** power
    return matrix, -mean @ matrix


def without_components(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return I - U U' float64[d, d] and b of the map x -> x (I - U U') + b, U the first `count` components.

    b = -mean (I - U U'): "all-but-the-top" of Mu and Viswanath 2018.
    """
    mean, _, basis = _components(vectors)
    if count >= len(mean):
        raise UserError(f"the vectors have {len(mean)} components: remove fewer than that")
    matrix = np.eye(len(mean)) - basis[:, :count] @ basis[:, :count].T
    return matrix, -mean @ matrix


def _components(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, variances (falling) and principal components, in columns, of [N, d], all in float64."""
    mean = vectors.mean(0, dtype=np.float64)
    covariance = np.zeros((len(mean), len(mean)))
    for start in range(0, len(vectors), 8192):  # not a float64 copy of them all
        centred = vectors[start : start + 8192] - mean
        covariance += centred.T @ centred
    variances, basis = np.linalg.eigh(covariance / len(vectors))
    return mean, variances[::-1], basis[:, ::-1]


# -- models -------------------------------------------------------------


def open_base(source: ModelSource, pooling: str) -> Any:
    """Open a model by sentence-transformers, to add modules to it or to leave some out."""
    from finetune.encoders.embed import POOLER

    chosen = pooling_of(source, "" if pooling in WEIGHTINGS else pooling, quiet=False)
    if chosen == POOLER:
        raise UserError(f"--pooling {POOLER}: its vectors have no modules that a folder could name")
    if chosen == WORDS:  # with the transformer whose table it is
        own = open_sentence_transformer(source, None)
        return _like(own, [*open_padded(source, "mean", None), *split_normalize(own)[1]])
    if chosen in (OWN_MODULES, source.trained_pooling):  # with its prompts
        return open_sentence_transformer(source, None)
    return open_padded(source, chosen, None)


def weigh_tokens(model: Any, weights: np.ndarray, name: str) -> Any:
    """Return a model whose mean over tokens is by their weights, float[V]; name: what errors call it."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    modules = [*model]
    kinds = [type(module) for module in modules]
    pooling = modules[kinds.index(Pooling)].pooling_mode if Pooling in kinds else "no"
    if pooling != "mean" or WordWeights in kinds:
        what = "such weights already" if pooling == "mean" else f"{pooling} pooling"
        raise UserError(f"weights of tokens are for a mean over tokens, and {name} has {what}")
    by_token = weights_by_token(weights.tolist(), model.tokenizer)
    modules.insert(kinds.index(Pooling), WordWeights(list(by_token), by_token))
    return _like(model, modules)


def map_vectors(model: Any, matrix: np.ndarray, bias: np.ndarray) -> Any:
    """Return a model with the map x -> x W + b behind it, W float[d, k]; before its `Normalize`, if any."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense

    layer = Dense(
        *matrix.shape,
        activation_function=torch.nn.Identity(),
        init_weight=torch.from_numpy(matrix.T.astype(np.float32)),
        init_bias=torch.from_numpy(bias.astype(np.float32)),
    )
    own, last = split_normalize(model)
    return _like(model, [*own, layer, *last])


def split_normalize(model: Any) -> tuple[list[Any], list[Any]]:
    """Return a model's modules, and apart from them the `Normalize` at its end, if there is one."""
    from sentence_transformers.sentence_transformer.modules import Normalize

    modules = [*model]
    cut = len(modules) - isinstance(modules[-1], Normalize)
    return modules[:cut], modules[cut:]


def _like(model: Any, modules: Sequence[Any]) -> Any:
    """Return a model of modules, with the prompts of another."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        modules=list(modules),
        device=str(model.device),
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )


def token_vectors(model: Any, encoded: bool) -> np.ndarray:
    """Return a vector for each token of the vocabulary, float32[V, d].

    encoded: each token alone between the special tokens, as a text is; else the rows of the embedding layer.
    """
    import torch

    if not encoded:
        return model[0].auto_model.get_input_embeddings().weight.detach().float().cpu().numpy()
    sample = model.tokenizer("a", return_special_tokens_mask=True)
    ids, special = sample["input_ids"], sample["special_tokens_mask"]
    first, last = ids[: special.index(0)], ids[len(special) - special[::-1].index(0) :]
    rows = torch.tensor([[*first, token, *last] for token in range(len(model.tokenizer))])
    bare = _like(model, split_normalize(model)[0])
    vectors = []
    with torch.inference_mode():
        for part in rows.to(model.device).split(1024):
            found = bare({"input_ids": part, "attention_mask": torch.ones_like(part)})
            vectors.append(found["sentence_embedding"].float().cpu().numpy())
    return np.concatenate(vectors)


def table_width(tokens: int) -> int:
    """Return the width of a float16 table of TABLE_BYTES at most: a multiple of 8, where 8 are possible."""
    width = TABLE_BYTES // (2 * tokens)
    return width - width % 8 or max(1, width)


# -- folders ------------------------------------------------------------


def derive(name: str, out: str, fit: Derivation) -> list[str]:
    """Write a folder derived from a model, and return what was done, a line each."""
    source, folder, done = resolve(name), Path(out), list[str]()
    if source.trained_pooling == WORDS and fit.pooling in ("", WORDS, *WEIGHTINGS):  # a table stays one
        if fit.static == ENCODED or fit.remove:
            raise UserError(f"{name} is a static table: give --whiten, or --pooling sif or idf")
        pooling = "" if fit.pooling == WORDS else fit.pooling
        fit = fit.model_copy(update={"static": INPUT, "pooling": pooling})
    if folder.resolve() == Path(source.location).resolve():
        raise UserError(f"--out {out} is the model's own folder; name another")
    require_replaceable(folder)
    weighted, mapped = fit.pooling in WEIGHTINGS, fit.whiten is not None or fit.remove > 0
    if fit.remove and (fit.static or fit.whiten is not None):
        raise UserError("--remove goes with neither --whiten nor --static: leave one of them out")
    if fit.power and fit.whiten is None:
        raise UserError("--power is of the whitening: give --whiten N, or leave it out")
    prepared = os.path.isfile(os.path.join(fit.text, MANIFEST))
    if weighted and mapped and prepared and not fit.static:
        raise UserError(
            f"--pooling {fit.pooling} with a map needs text, and {fit.text} is prepared data: name its "
            "sources"
        )
    fitted = weighted or mapped or fit.static == ENCODED
    if fitted and not fit.text:
        raise UserError("give the text that this is fitted on: --text FILES, as `clearly prepare` reads them")
    model = open_base(source, fit.pooling)
    if (fit.text and not fitted) or (fit.sentences and not mapped):
        idle = "--text" if fit.text and not fitted else "--sentences"
        raise UserError(f"nothing that is asked for is fitted on {idle}: leave it out")
    given = fit.text if prepared or not fit.text else read_split(fit.text)

    def weights(kind: str) -> np.ndarray:
        counts = TokenCounts.of(read_tokens(given, model, source.location), len(model.tokenizer))
        done.append(f"{kind} weights of {len(counts.occurrences):,} tokens, from {counts.texts:,} texts")
        return counts.weights(kind)

    most = fit.sentences or MOST_SENTENCES
    if fit.static:
        table = token_vectors(model, fit.static == ENCODED)
        width = min(table.shape[1], table_width(len(table)))
        if not mapped and fitted:  # model2vec's: the components by which the rows vary most
            mean, _, basis = _components(table)
            table = (table - mean) @ basis[:, :width]
        if weighted or (fitted and not mapped):
            table = table * weights(fit.pooling if weighted else SIF)[:, None]
        if mapped:  # exact: the mean of mapped rows is the map of their mean
            vectors = _means_of_rows(table, given, model, source.location, most)
            matrix, bias = _fit_map(fit, vectors, width, done)
            table = table @ matrix + bias
        if np.abs(table).max() > np.finfo(np.float16).max:
            raise UserError(
                "rows of tokens that the text lacks are too large for float16: give more text, or keep fewer"
            )
        if fitted:
            table = table.astype(np.float16)
        model = _static_model(model, table)
        done.append(f"static table: {len(table):,} tokens x {table.shape[1]}, {table.nbytes / 1e6:.1f} MB")
    else:
        if weighted:
            model = weigh_tokens(model, weights(fit.pooling), name)
        if mapped:
            vectors = _unscaled_vectors(source, fit.pooling, model, given, most)
            model = map_vectors(model, *_fit_map(fit, vectors, vectors.shape[1], done))
    save(model, folder)
    return done


def _fit_map(
    fit: Derivation, vectors: np.ndarray, width: int, done: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return W float64[d, k] and b of the map that is asked for, k at most `width`; say in `done` which."""
    if len(vectors) <= vectors.shape[1]:
        few = f"{len(vectors):,} different sentences and vectors of {vectors.shape[1]} numbers"
        raise UserError(
            f"--text {fit.text}: {few}: give more sentences than numbers, better ten times as many"
        )
    if width < (fit.whiten or 0) <= vectors.shape[1]:
        raise UserError(f"--whiten {fit.whiten}: keep {width} at most, with which a table has 8 MB")
    if fit.remove:
        matrix, bias = without_components(vectors, fit.remove)
    else:
        matrix, bias = whitening(vectors, fit.whiten or 0, fit.power or 1)
    kept = min(width, matrix.shape[1])
    whitened = "whitened" if fit.power in (None, 1) else f"whitened by the power {fit.power:g}"
    what = f"without the first {fit.remove}" if fit.remove else f"{whitened}, {kept}"
    done.append(f"{what} of {len(matrix)} components, fitted on {len(vectors):,} sentences")
    return matrix[:, :kept], bias[:kept]


def _unscaled_vectors(
    source: ModelSource, pooling: str, model: Any, given: str | Sequence[str], max_texts: int
) -> np.ndarray:
    """Return what a map is fitted on: vectors before they are scaled to length 1, float32[N, d].

    Packed, unless pooling weighs tokens or packing does not know the model; given: texts, or prepared data.
    """
    opened = None if pooling in WEIGHTINGS else open_model(source, pooling, quiet=True)
    if opened is None or not isinstance(runs := opened.runs, PackedModel):
        if isinstance(given, str):
            raise UserError(
                f"--text {given} is prepared data, and {source.name} reads text: name its sources"
            )
        bare = _like(model, split_normalize(model)[0])
        return bare.encode(evenly_spaced(given, max_texts), show_progress_bar=False)
    runs.encoder.normalize = False
    name = runs.encoder.pooling if runs.single else opened.pooling
    if not isinstance(given, str):
        chosen = [opened.prompt + one for one in evenly_spaced(given, max_texts)]
        return runs.vectors(chosen, [name])[name]
    reader = _open_prepared(given, model, source.location)
    if opened.prompt or reader.max_length > runs.longest:
        raise UserError(
            f"--text {given} is prepared data of up to {reader.max_length} tokens without a prompt, and "
            f"{source.name} reads {runs.longest} behind the prompt {opened.prompt!r}: name its sources"
        )
    return embed_rows(runs.encoder, _stored_rows(reader, max_texts), [name])[name]


def _stored_rows(reader: ShardReader, max_texts: int) -> list[np.ndarray]:
    """Return the tokens of texts of prepared data, int64, evenly spaced."""
    rows = list[np.ndarray]()
    chunks = evenly_spaced(range(reader.num_chunks), -(-max_texts // ROWS_OF_A_CHUNK))
    for chunk in chunks:
        stored = reader.read(chunk).stored
        there = np.flatnonzero(stored.lengths)  # of a record's columns
        rows += [stored[row] for row in evenly_spaced(there.tolist(), -(-max_texts // len(chunks)))]
    return [row.astype(np.int64) for row in evenly_spaced(rows, max_texts)]


def _means_of_rows(
    table: np.ndarray, given: str | Sequence[str], model: Any, location: str, max_texts: int
) -> np.ndarray:
    """Return the mean of the rows of the tokens of each text, float32[N, d].

    What the tokenizer adds around a text is left out, as the static table's own tokenizer adds nothing.
    """
    if isinstance(given, str):
        found = _stored_rows(_open_prepared(given, model, location), max_texts)
    else:
        parts = read_tokens(evenly_spaced(given, max_texts), model, location)
        found = [part[row] for part in parts for row in range(len(part))]
    added = model.tokenizer("")["input_ids"]
    inner = [row[~np.isin(row, added)] for row in found]
    filled = [row for row in inner if len(row)]
    if not filled:
        raise UserError(
            f"--text: the tokenizer of {location} makes no token of any of {len(found):,} texts: give others"
        )
    return np.stack([table[row].mean(0) for row in filled]).astype(np.float32)


def _static_model(model: Any, table: np.ndarray) -> Any:
    """Return a model whose vector of a sentence is the mean of its tokens' rows of a table [V, d]."""
    import torch
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.backend_tokenizer.no_truncation()
    words = StaticEmbedding(tokenizer, torch.from_numpy(table))
    return _like(model, [words, *split_normalize(model)[1]])


def save(model: Any, out: Path) -> None:
    """Save a sentence-transformers model as a folder, whole or not at all."""
    require_replaceable(out)
    try:
        with files.filled_folder(out) as hidden:
            with files.library_errors(), quiet_transformers():
                model.save_pretrained(str(hidden), create_model_card=False)
            files.let_read(hidden)
            files.write_durably(hidden / MARK, b"Written by clearly export, which may replace this folder.\n")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}; name another --out") from error


def require_replaceable(out: Path) -> None:
    """Raise UserError if a folder holds something else than a model that `save` wrote."""
    free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not free and not (out / MARK).is_file():
        raise UserError(f"--out {out} exists and is no folder that this command made; name another")
