"""Marks that tests share."""

import pytest


def slow(*values: object) -> object:
    """A parameter whose test is left to `-m slow`: the same claim is tested with another one."""
    return pytest.param(*values, marks=pytest.mark.slow)
