"""What the figures are drawn into: projector files that TensorBoard reads, and svg elements of a page."""

import numpy as np
import pytest

from finetune.geometry import plots
from finetune.geometry.projector import write_projector
from pretrain.common.errors import UserError


def test_projector_files_are_what_tensorboard_reads(tmp_path):
    from google.protobuf import text_format
    from tensorboard.plugins.projector import ProjectorConfig

    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    path = write_projector(
        tmp_path, 'a "name"', vectors, {"text": ["a\tb", "c\nd", ""], "augmentation": ["x", "y", "z"]}
    )
    config = text_format.Parse(path.read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    assert embedding.tensor_name == 'a "name"'
    np.testing.assert_allclose(
        np.loadtxt(tmp_path / embedding.tensor_path, delimiter="\t"), vectors, rtol=1e-6
    )
    rows = [line.split("\t") for line in (tmp_path / embedding.metadata_path).read_text().splitlines()]
    assert rows == [["text", "augmentation"], ["a b", "x"], ["c d", "y"], ["-", "z"]]
    write_projector(tmp_path, "one", vectors, {"label": [1, 2, 3]})
    assert (tmp_path / "metadata.tsv").read_text() == "1\n2\n3\n"
    with pytest.raises(UserError, match="2 entries for 3 vectors"):
        write_projector(tmp_path, "x", vectors, {"label": [1, 2]})


def test_figures_in_a_page_follow_its_colour_and_keep_their_ids_apart(tmp_path):
    with plots.style():
        texts = []
        for name in ("first", "second"):
            figure, axis = plots.plt.subplots()
            axis.plot([0, 1], [0, 1])
            axis.set_title("title")
            texts.append(plots.to_svg(figure, name))
    import re
    import xml.etree.ElementTree as ElementTree

    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in texts]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip(texts, ids, strict=True):
        ElementTree.fromstring(text)
        assert "currentColor" in text and "#010203" not in text
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= own
