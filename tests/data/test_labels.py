"""Labels as people have them: a name that is lost or swapped would make every answer a lie."""

import datetime
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup import SupSupError
from supsup.data.task import check_names
from supsup.data.user_data import encode_parts, encode_with

LABELS = st.one_of(
    st.text(max_size=5).filter(lambda text: text == text.encode(errors="replace").decode()),
    st.integers(-(10**12), 10**12),
    st.booleans(),
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"])),
)


def exactly(label: Any) -> tuple[Any, ...]:
    return (type(label), tuple(map(exactly, label)) if isinstance(label, tuple) else label)


@given(st.lists(LABELS, min_size=2, max_size=30).filter(lambda values: len(set(map(exactly, values))) > 1))
def test_every_label_comes_back_as_it_was(values: list[Any]) -> None:
    (labels,), classes, names = encode_parts([values], ["labels"])
    assert labels.dtype == torch.int64
    called = range(classes) if names is None else names
    assert [exactly(called[number]) for number in labels.tolist()] == list(map(exactly, values))
    assert sorted(set(labels.tolist())) == list(range(classes))
    assert encode_with(values, names, classes).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("values", "numbers", "names"),
    [
        ([2, 0, 1], [2, 0, 1], None),
        (np.array([7, 3, 7], np.uint8), [1, 0, 1], (3, 7)),
        (torch.tensor([-1, 1]), [0, 1], (-1, 1)),
        (np.array(["robin", "jay", "robin"]), [1, 0, 1], ("jay", "robin")),
        (np.array(["b", "a"], object), [1, 0], ("a", "b")),
        ([np.str_("b"), "a"], [1, 0], ("a", "b")),
        ([True, False], [1, 0], (False, True)),
        (np.array([True, False]), [1, 0], (False, True)),
        ([torch.tensor(4), torch.tensor(9)], [0, 1], (4, 9)),
        ([1, "one", 1], [0, 1, 0], (1, "one")),
        ([1, True], [0, 1], (1, True)),
    ],
)
def test_kinds(values: Any, numbers: list[int], names: Any) -> None:
    (labels,), classes, found = encode_parts([values], ["labels"])
    assert (labels.tolist(), found) == (numbers, names)
    assert classes == len(set(numbers))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, 1.5], "real number"),
        (np.array([0.0, 1.0]), "real numbers"),
        (torch.tensor([0.0, 1.0]), "float32"),
        ([None, 1], "missing"),
        ([float("nan"), 1], "missing"),
        ([1, 1, 1], "at least two classes"),
        ([], "one label for each"),
        ([[0], [1]], "give text, whole numbers"),
        ([b"a", b"b"], "bytes"),
        ([datetime.date(2020, 1, 1), 1], "date"),
        (np.array(["2020-01-01"], "datetime64[D]"), "datetime64"),
        (["a" * 2000, "b"], "give text"),
        (["\ud800", "b"], "give text"),
        (torch.zeros(2, 2, dtype=torch.int64), "one label for each"),
        ([torch.zeros(2), torch.zeros(2)], "one label for each"),
        ("ab", "one label for each"),
        ({"a": 1}, "one label for each"),
        (3, "one label for each"),
        (np.ma.masked_array([0, 1], [True, False]), "masked"),
    ],
)
def test_what_is_no_label(values: Any, message: str) -> None:
    with pytest.raises(SupSupError, match=message):
        encode_parts([values], ["labels"])


def test_parts_of_a_data_set_share_their_classes() -> None:
    (train, test), classes, names = encode_parts([["b", "a"], np.array(["c", "a"])], ["train", "test"])
    assert (train.tolist(), test.tolist(), classes, names) == ([1, 0], [2, 0], 3, ("a", "b", "c"))
    with pytest.raises(SupSupError, match="'c', which is no class"):
        encode_with(["a", "c"], ("a", "b"), 2)


def test_names_must_differ() -> None:
    assert check_names([np.int64(3), "3", True, 1]) == (3, "3", True, 1)
    with pytest.raises(SupSupError, match="same"):
        check_names(["a", "a"])


def test_names_are_kept_only_where_they_are_not_the_class_numbers() -> None:
    assert encode_parts([[0, 1]], ["labels"])[2] is None
    assert encode_parts([[False, True]], ["labels"])[2] == (False, True)
    assert encode_parts([[1, 2]], ["labels"])[2] == (1, 2)
