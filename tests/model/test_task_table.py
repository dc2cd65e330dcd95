"""The task table: facts of a task by name and by index, and one error for names that are not there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supsup import SupSupError
from supsup.data.task import TaskInfo
from supsup.file.task_record import LearnedTask, check_extras
from supsup.model.state import Extras, TaskTable, check_among, check_classes, check_name


def table(*names: str) -> TaskTable:
    return TaskTable(LearnedTask(name, number, "now") for number, name in enumerate(names, 1))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh")), max_size=40))
def test_indices_are_those_of_a_list_whatever_is_added_and_removed(changes: list[tuple[bool, str]]) -> None:
    """A wrong index would answer with another task's mask."""
    tasks, expected = TaskTable(), list[str]()
    for add, name in changes:
        if add and name not in expected:
            tasks.prepare_add([LearnedTask(name, 2, "now")])()
            expected.append(name)
        elif not add and name in expected:
            tasks.prepare_remove(name)()
            expected.remove(name)
        assert tasks.names == expected == [task.name for task in tasks]
        assert len(tasks) == len(expected)
        for index, known in enumerate(expected):
            assert tasks.index(known) == index
            assert tasks.at(index) is tasks[known]


def test_looking_up_a_name_does_not_walk_through_all_of_them() -> None:
    """With thousands of tasks a walk for each image or task makes grading quadratic."""

    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Counted(f"task-{number}") for number in range(3000)]
    tasks = table(*names)
    tasks.prepare_remove("task-7")()
    Counted.compared = 0
    assert [tasks.index(f"task-{number}") for number in range(8, 3000, 100)] == list(range(7, 2999, 100))
    assert Counted.compared < 100


def test_an_unknown_task_is_named_with_some_of_those_known() -> None:
    for call in (lambda: table(*"abcdefg").index("x"), lambda: check_among(["a", "x"], list("abcdefg"))):
        with pytest.raises(SupSupError, match=r"unknown task 'x'; known: a, b, c, d, e, …$"):
            call()
    with pytest.raises(SupSupError, match=r"unknown task 'x'; known: a$"):
        table("a")["x"]
    with pytest.raises(SupSupError, match="none has been learned yet"):
        table().prepare_remove("x")
    with pytest.raises(SupSupError, match="learned already"):
        table("a").prepare_add([LearnedTask("a", 1, "later")])
    with pytest.raises(SupSupError, match=r"among=\[\]"):
        table("a").indices([])


def test_a_copy_has_facts_of_its_own() -> None:
    tasks = table("a", "b")
    tasks["a"].extras = {"x": torch.ones(1)}
    tasks.mark_saved(tasks.unsaved())
    copy = tasks.copy()
    copy["a"].classes, copy["a"].extras["y"] = 9, torch.ones(2)
    copy.prepare_remove("b")()
    assert (tasks["a"].classes, list(tasks["a"].extras), tasks.names) == (1, ["x"], ["a", "b"])
    assert list(copy.unsaved()) == ["a"]


def test_extras_belong_to_a_task_and_wait_to_be_saved() -> None:
    tasks = table("a", "b")
    tasks.mark_saved(tasks.unsaved())
    extras = Extras(tasks)
    extras["b"] = {"x": torch.ones(1)}
    assert (list(extras), len(extras), "a" in extras, extras.get("a")) == (["b"], 1, False, None)
    assert list(tasks.unsaved()) == ["b"]
    with pytest.raises(SupSupError, match="unknown task 'c'"):
        extras["c"] = {}
    with pytest.raises(KeyError):
        del extras["a"]
    del extras["b"]
    assert not extras


def test_a_task_has_no_more_classes_than_whole_numbers_of_32_bits_can_count() -> None:
    """A file with more is taken for damaged, so they must not get there."""
    check_classes("task", 2**31 - 1)
    for classes in (2**31, 0, True, 2.0):
        with pytest.raises(SupSupError, match="classes"):
            check_classes("task", classes)


def test_names_that_can_be_written() -> None:
    for name in ("a", "x" * 1000, "Straße 7"):
        check_name(name)
    for wrong in ("", 3, None, "x" * 1001, "a\0b", "\ud800"):
        with pytest.raises(SupSupError, match="name"):
            check_name(wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([torch.ones(1)], "dict of tensors"),
        ({1: torch.ones(1)}, "the name"),
        ({"": torch.ones(1)}, "the name"),
        ({"__metadata__": torch.ones(1)}, "the name"),
        ({"statistics/x": torch.ones(1)}, "the name"),
        ({"supsup/trace/x": torch.ones(1)}, "the name"),
        ({"\ud800": torch.ones(1)}, "can be written"),
        ({"x": [1.0]}, "dense tensor"),
        ({"x": torch.ones(2, device="meta")}, "dense tensor"),
        ({"x": torch.ones(2, 2).to_sparse()}, "dense tensor"),
        ({"x": torch.ones(2, dtype=torch.complex64)}, "dense tensor"),
    ],
)
def test_extras_that_cannot_be_saved(wrong: object, said: str) -> None:
    check_extras({"a": torch.ones(2), "b": torch.zeros(0, dtype=torch.bool)})
    with pytest.raises(SupSupError, match=said):
        check_extras(wrong)


def test_what_the_file_has_is_not_saved_again() -> None:
    """Unless it has changed since the marks were taken."""
    tasks = TaskTable()
    tasks.prepare_add([LearnedTask("a", 2, "now")], saved=True)()
    tasks.prepare_add([LearnedTask("b", 2, "now"), LearnedTask("c", 2, "now")])()
    assert list(tasks.unsaved()) == ["b", "c"]
    marks = tasks.unsaved()
    tasks.mark_unsaved("b")
    tasks.mark_saved(marks)
    assert list(tasks.unsaved()) == ["b"]
    tasks.mark_unsaved("a")
    assert list(tasks.unsaved()) == ["a", "b"], "in order"
    tasks.prepare_remove("a")()
    assert list(tasks.unsaved()) == ["b"]


def test_tasks_by_how_they_see_images_are_looked_through_once() -> None:
    tasks = table("a", "b", "c")
    views = tasks.input_groups()
    assert views == [(None, [0, 1, 2])]
    assert tasks.input_groups() is views
    assert tasks.input_groups([2, 0]) == [(None, [2, 0])]
    tasks.prepare_add([LearnedTask("d", 1, "now")])()
    assert tasks.input_groups() == [(None, [0, 1, 2, 3])]


def test_a_class_is_called_by_its_name_where_it_has_one() -> None:
    assert [TaskInfo(("cat", "dog")).class_name(label) for label in range(3)] == ["cat", "dog", 2]
    assert TaskInfo().class_name(1) == 1
