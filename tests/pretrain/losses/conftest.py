"""What is drawn for a loss is the same whatever ran before in the process: some tolerances are of the last
digits."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
