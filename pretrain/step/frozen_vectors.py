"""Keep the frozen encoder's vectors beside the data, so that it embeds each text once for all runs.

A sparse file has a row for every text: a word of 8 bytes, and the vector. The word is a hash of the vector
that the text's tokens seed. A row that is not written, half written or damaged, or that is of other tokens,
has another one, and its text is embedded again. So ranks and runs share the file without a lock, and a killed
one leaves nothing wrong.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import xxhash

from augment.core.identity import sequence_identities
from augment.core.ragged import Ragged
from augment.spec.grammar import parse
from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec
from pretrain.data.shards import ShardReader
from pretrain.objectives import WholeObjective


class FrozenVectors:
    """The vectors of one encoder, of all texts of a split."""

    def __init__(self, path: Path, columns: Sequence[int], texts: int, width: int, dtype: str) -> None:
        """Open a file, which is made if it is not there; raise UserError if it cannot be written.

        columns: of each view that is embedded the number of what it is made of, from 0. texts: in each
        column. width: of a vector. dtype: float32 or float16, in which vectors are kept and given.
        """
        self.path, self.columns, self.texts = path, np.asarray(columns), texts
        self._row = np.dtype([("word", "<u8"), ("vector", np.dtype(dtype).newbyteorder("<"), (width,))])
        count, self._writes = texts * (1 + max(columns)), True
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if os.fstat(self._file).st_size != (size := count * self._row.itemsize):
                os.ftruncate(self._file, size)  # a hole, which takes no room
            self._rows = np.memmap(path, self._row, "r", shape=(count,))
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; objective.keep_vectors=none") from None

    def of(self, ids: np.ndarray, sequences: Ragged, embed: Callable[[Ragged], np.ndarray]) -> np.ndarray:
        """Return the vectors of views, and keep those that `embed` has to give: float32[S, width].

        ids: uint64[n], numbers of texts in their split. sequences: their tokens, view by view, S = views * n.
        embed: gives float32[m, width] of m sequences.
        """
        rows = (self.columns[:, None] * self.texts + ids.astype(np.int64)).ravel()
        identities = sequence_identities(sequences)
        found = self._rows[rows]
        missing = np.flatnonzero(_words(found["vector"], identities) != found["word"])
        if len(missing):
            _, first, which = np.unique(rows[missing], return_index=True, return_inverse=True)
            chosen = missing[first]  # two views of a column are one text
            new = np.empty(len(chosen), self._row)
            new["vector"] = embed(sequences.take(chosen))
            new["word"] = _words(new["vector"], identities[chosen])
            finite = np.isfinite(new["vector"]).all(1)  # what a fault has made is not kept
            self._write(rows[chosen][finite], new[finite])
            found[missing] = new[which]
        return found["vector"].astype(np.float32)

    def _write(self, rows: np.ndarray, new: np.ndarray) -> None:
        try:
            for row, one in zip(rows.tolist(), new) if self._writes else ():
                os.pwrite(self._file, one.tobytes(), row * self._row.itemsize)
        except OSError as error:  # a run does not end for want of what only saves time
            self._writes, said = False, f"warning: {self.path} keeps no more vectors: {error.strerror}"
            print(said, file=sys.stderr, flush=True)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def keep_vectors(
    config: Config, objective: WholeObjective, data: ShardReader, spec: BatchSpec, say: Callable[[str], None]
) -> FrozenVectors | None:
    """Open DATA.vectors-DIGEST, if `objective.keep_vectors` asks for it and no view is augmented.

    The digest is of the frozen encoder's weights, of the data and of what views are made of. say: is told
    where vectors are kept, or why not.
    """
    kind, guide, roles = config.objective.keep_vectors, objective.guide, objective.guided_roles
    if guide is None or kind == "none":
        return None
    views = [next(view for view in spec.views if view.role == role) for role in roles]
    for view in (view for view in views if not parse(view.augmentation).is_identity):
        say(f"vectors    not kept: {view.augmentation} makes another text of view {view.role} at every step")
        return None
    names = [next((n for n in (view.role, view.column) if n in data.columns), "text") for view in views]
    sources = [(name, str(spec.prompt(role))) for name, role in zip(names, roles)]
    columns = list(dict.fromkeys(sources))
    model = guide.lm.config.to_diff_dict() | {"transformers_version": None, "_name_or_path": None}
    facts = columns, kind, config.train.precision, data.content_hash, guide.pooling, guide.left_out
    digest = hashlib.sha256(repr((*facts, sorted(model.items()), guide.head)).encode())
    # without the masked-language head, which is drawn anew if the encoder brings none
    heads = [] if guide.head is None else guide.head.state_dict().values()
    for tensor in [*guide.lm.base_model.state_dict().values(), *heads, guide.token_weights]:
        digest.update(b"" if tensor is None else tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    folder = data.folder.resolve()
    path = folder.with_name(f"{folder.name}.vectors-{digest.hexdigest()[:12]}")
    say(f"vectors    of {config.objective.guide} are kept in {path}, as {kind}")
    numbers = [columns.index(source) for source in sources]
    width = guide.hidden_size
    if guide.head is not None:
        *_, last = (part for part in guide.head.modules() if isinstance(part, torch.nn.Linear))
        width = last.out_features
    return FrozenVectors(path, numbers, data.num_sequences, width, kind)


def _words(vectors: np.ndarray, identities: np.ndarray) -> np.ndarray:
    """Return the words of rows: uint64[n]. identities: int64[n], of their texts' tokens."""
    seeds = identities.view(np.uint64).tolist()
    words = (xxhash.xxh3_64_intdigest(one.tobytes(), seed) for one, seed in zip(vectors, seeds))
    return np.fromiter(words, np.uint64, len(vectors))
