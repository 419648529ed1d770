"""A data folder with the STS tasks."""

import pytest
from sts_layout import write_layout


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return write_layout(tmp_path_factory.mktemp("data"))
