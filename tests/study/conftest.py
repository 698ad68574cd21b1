import pytest

from cacseg.study.pool import start_server


@pytest.fixture(scope="session")
def server():
    """As the command has it: one process imports everything, once for all tests, and forks those of the jobs."""
    start_server()
