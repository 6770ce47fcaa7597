from collections.abc import Iterator

import pytest

from svoo.fleet.cluster import Cluster, open_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real Ray cluster on this machine, with two workers."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'svoo[fleet]'")
    with open_cluster("local", workers=2) as found:
        assert found is not None and found.workers == 2
        yield found
