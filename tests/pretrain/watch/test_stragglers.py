"""The rank that the others wait for is named in each row of metrics."""

import pytest
from run_helpers import command, finish, records, start

from pretrain.step.log import slowest_rank


def test_the_slowest_rank_is_named_with_its_time_over_the_median_ranks():
    assert slowest_rank([2.0, 2.1, 3.0, 1.9]) == {"slowest_rank": {"rank": 2, "over_median": 1.5}}
    assert slowest_rank([0.0, 0.0]) == {}


@pytest.mark.full
def test_a_run_of_two_ranks_has_it_in_its_rows(tiny_data, tmp_path):
    finish(start(command(tiny_data, tmp_path, train__steps=4, evaluate__every=0), ranks=2))
    found = [row["slowest_rank"] for row in records(tmp_path) if row.get("slowest_rank")]
    assert len(found) == 4
    assert all(row["rank"] in (0, 1) and row["over_median"] >= 1 for row in found)
