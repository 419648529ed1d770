"""Files for TensorBoard's embedding projector: `tensorboard --logdir FOLDER`, tab Projector."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably


def write_projector(
    folder: Path, name: str, vectors: np.ndarray, metadata: Mapping[str, Sequence[object]]
) -> Path:
    """Write tensors.tsv, metadata.tsv and projector_config.pbtxt into `folder`; return the last.

    Args:
        name: what the projector calls the tensor.
        vectors: [N, d].
        metadata: one or more columns of N entries, for labels and colours. Tabs and line ends in them become
            blanks.

    Raises:
        UserError: a column of another length, or no column.
    """
    if not metadata:
        raise UserError("the projector needs at least one column of metadata")
    for column, entries in metadata.items():
        if len(entries) != len(vectors):
            raise UserError(
                f"metadata column {column!r} has {len(entries)} entries for {len(vectors)} vectors"
            )
    make_folder(folder)
    lines = ("\t".join(f"{value:.7g}" for value in row) + "\n" for row in np.asarray(vectors))
    replace_durably(folder / "tensors.tsv", "".join(lines).encode())
    rows = list(zip(*metadata.values(), strict=True))
    if len(metadata) > 1:  # a file of one column has no header: the projector would take it for a point
        rows.insert(0, tuple(metadata))
    text = "".join("\t".join(" ".join(str(cell).split()) or "-" for cell in row) + "\n" for row in rows)
    replace_durably(folder / "metadata.tsv", text.encode())
    config = folder / "projector_config.pbtxt"
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    content = (
        f'embeddings {{\n  tensor_name: "{quoted}"\n  tensor_path: "tensors.tsv"\n  metadata_path: '
        f'"metadata.tsv"\n}}\n'
    )
    replace_durably(config, content.encode())
    return config
