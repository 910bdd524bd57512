import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def figures_closed():
    """No test leaves figures to the next, which would warn of too many."""
    yield
    plt.close("all")
