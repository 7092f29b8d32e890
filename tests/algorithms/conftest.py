import pytest


@pytest.fixture(autouse=True, scope="module")
def haste(compiled_in_haste):
    """Updates of some dozen samples: compiling them is all the time."""
