"""What the figures are drawn into: svg elements of a page."""

import re
import xml.etree.ElementTree as ElementTree

from finetune.figures.drawing import Line, draw_lines, to_svg


def test_figures_in_a_page_follow_its_colour_and_keep_their_ids_apart():
    figures = {
        name: draw_lines({"title": [Line("a", [0, 1], [0, 1], "red")]}) for name in ("first", "second")
    }
    texts = [to_svg(figure, name) for name, figure in figures.items()]
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in texts]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip(texts, ids, strict=True):
        ElementTree.fromstring(text)
        assert "currentColor" in text and "#010203" not in text
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', text)) <= own
