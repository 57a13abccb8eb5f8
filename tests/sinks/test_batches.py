import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.base import Batch, BatchingSink, Columns, cut

DAY_MS = 86_400_000


def columns(t_ms: list[int]) -> Columns:
    n = len(t_ms)
    return {"t": t_ms, "src_offset": list(range(10, 10 + n)), "src_idx": [0] * n}


@given(st.lists(st.integers(0, 4 * DAY_MS), max_size=50), st.integers(1, 20))
def test_cut_keeps_every_row_once_within_one_day(t_ms: list[int], max_rows: int) -> None:
    batches = cut("windows", "t", 0, columns(t_ms), max_rows)
    assert sorted(o for b in batches for o in b.columns["src_offset"]) == list(range(10, 10 + len(t_ms)))
    for batch in batches:
        assert 0 < len(batch) <= max_rows
        assert len({t // DAY_MS for t in batch.columns["t"]}) == 1
        assert batch.columns["src_offset"] == sorted(batch.columns["src_offset"])
    assert len({b.token for b in batches}) == len(batches)


@given(st.integers(2, 30))
def test_halves_have_names_of_their_own(n: int) -> None:
    (batch,) = cut("windows", "t", 0, columns([5] * n))
    left, right = batch.split()
    assert len({batch.token, left.token, right.token}) == 3
    assert left.columns["src_offset"] + right.columns["src_offset"] == batch.columns["src_offset"]


def test_name_says_where_the_rows_are_from() -> None:
    batch = Batch("windows", "slodrift.windows", 3, {"t": [DAY_MS, DAY_MS], "src_offset": [4, 5], "src_idx": [1, 0]})
    assert batch.token == "windows|slodrift.windows|3|4.1-5.0|1"
    assert (batch.first, batch.last, len(batch)) == (4, 5, 2)


def test_columns_that_do_not_fit_are_a_clear_error() -> None:
    with pytest.raises(ValueError, match="missing: src_idx"):
        cut("windows", "t", 0, {"t": [], "src_offset": []})
    with pytest.raises(ValueError, match="differ in length: src_idx"):
        cut("windows", "t", 0, {"t": [1], "src_offset": [1], "src_idx": []})


async def test_other_columns_in_a_later_call_are_an_error() -> None:
    async def nothing(*_: object) -> None: ...

    class Nowhere:
        async def write(self, batch: Batch) -> None: ...

    sink = BatchingSink(Nowhere(), nothing)
    sink.add("windows", "t", 0, columns([1]))
    with pytest.raises(ValueError, match="columns changed"):
        sink.add("windows", "t", 0, columns([1]) | {"n": [1]})
