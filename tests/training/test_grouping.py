"""Which jobs go together."""

from supsup.training.grouping import fitting, groups


def test_groups_fit_into_memory_are_alike_and_keep_the_order() -> None:
    items = ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "a6"]

    def grouped(memory: int, most: int = 100) -> list[list[str]]:
        return groups(items, lambda one, other: one[0] == other[0], lambda item: 10, memory, most)

    assert grouped(10**6) == [["a1", "a2", "a3", "a4", "a5"], ["b1", "b2"], ["a6"]]
    assert grouped(43) == [["a1", "a2", "a3"], ["a4", "a5"], ["b1", "b2"], ["a6"]], "0.7 of 43 holds three"
    assert grouped(0) == [[item] for item in items], "one at a time where nothing seems to fit"
    assert [len(group) for group in grouped(10**6, most=4)] == [3, 2, 2, 1], "of about equal size"


def test_something_always_fits() -> None:
    assert fitting(100, 50, 10) == 1
    assert fitting(0, 50, 10) == 10
    assert fitting(7, 100, 10) == 10
    assert fitting(10, 100, 10) == 7
