import pytest
from test_exactness import check, launch


@pytest.mark.parametrize("world,stage", [(1, 0), (2, 1), (2, 3)])
def test_it(tmp_path, world, stage):
    check(launch(tmp_path, world, stage, "simcse+retain,simcse_symmetric"), world)
