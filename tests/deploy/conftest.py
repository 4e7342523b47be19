from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from charts import fetch_helm
from playing import Images, Machine, machine, needs_a_machine


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    needs_a_machine()
    return Images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def playground(tmp_path: Path, images: Images) -> Iterator[Machine]:
    with machine(tmp_path / "machine", images) as made:
        yield made


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_helm(tmp_path_factory.mktemp("helm"))
