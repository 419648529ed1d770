"""The real data and the parser that a machine may have. A test that needs what is
missing is skipped, and says what it needs."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("CLEAR_DATA") or "/nowhere")
PARSER = os.environ.get("CLEAR_PARSER", "")


def needs_data(*names: str) -> pytest.MarkDecorator:
    """Mark a test that reads these files or folders of CLEAR_DATA."""
    missing = [name for name in names if not (DATA / name).exists()]
    return pytest.mark.skipif(bool(missing), reason=f"CLEAR_DATA has no {missing[0]}" if missing else "")


def parser_folder() -> str:
    """Return the folder of the spaCy pipeline that CLEAR_PARSER names, or skip the test."""
    if not PARSER or not Path(PARSER).is_dir():
        pytest.skip("CLEAR_PARSER names no spaCy pipeline's folder")
    return PARSER
