"""A data folder with the STS tasks."""

from sts_layout import layout  # noqa: F401 - a fixture
