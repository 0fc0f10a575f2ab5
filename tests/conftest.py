"""Set-up of all tests: the device is known, one thread computes, nothing falls back to the CPU unnoticed."""

import helpers
import pytest
import torch

import torch_accel  # `import torch` did the same where the package is installed

pytest_plugins = ["opinfo_report"]

# The order of a sum depends on the number of threads.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_fallbacks():
    """Each test starts from zeroed counters and the same seed, and an operator without a kernel is an error in it.

    A file that wants otherwise overrides this fixture; a test may call torch_accel.fallback.
    """
    torch_accel.reset_counters()
    torch.manual_seed(0)
    with torch_accel.fallback("error"):
        yield


@pytest.fixture
def run_python():
    return helpers.run_python


@pytest.fixture
def run_ok():
    return helpers.run_ok
