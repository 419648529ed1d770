"""Corpora that a word names: what is read for it. docs/data.md has their sizes and licences."""

from typing import Any

NAMED_DATA: dict[str, dict[str, Any]] = {
    "simcse-wiki1m": {
        "source": "hub:princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt",
        "layout": "lines",
    },
    "nli-for-simcse": {"source": "hub:princeton-nlp/datasets-for-simcse/nli_for_simcse.csv"},
    "wikipedia": {"source": "hub:wikimedia/wikipedia", "subset": "20231101.en"},
    "fineweb-edu": {"source": "hub:HuggingFaceFW/fineweb-edu", "subset": "sample-10BT"},
    "bookcorpus": {"source": "hub:SamuelYang/bookcorpus", "layout": "passages"},
}
"""Name -> the keys of a source that it stands for."""
