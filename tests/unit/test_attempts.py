"""Starts that fail in a row end; starts that people make are never refused."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from sglang_kit.attempts import LIMIT, Attempts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    return Attempts("chat")


def fail(attempts: Attempts) -> bool:
    attempts.begin()
    return attempts.exhausted()


def test_the_last_start_in_a_row_is_the_last_one(attempts: Attempts) -> None:
    assert [fail(attempts) for _ in range(LIMIT)] == [False] * (LIMIT - 1) + [True]


def test_the_start_after_it_is_a_first_one_again(attempts: Attempts) -> None:
    assert [fail(attempts) for _ in range(2 * LIMIT)].count(True) == 2


def test_a_start_that_became_ready_breaks_the_row(attempts: Attempts) -> None:
    for _ in range(LIMIT - 1):
        fail(attempts)
    attempts.begin()
    attempts.forget()
    assert not attempts.exhausted()
    assert not fail(attempts)


def test_a_launcher_that_was_killed_counts_too(attempts: Attempts) -> None:
    for _ in range(LIMIT - 1):
        attempts.begin()
    assert fail(attempts)


def test_a_disk_that_cannot_be_written_breaks_no_start(
    attempts: Attempts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    attempts.begin()
    monkeypatch.setattr(type(tmp_path), "unlink", refuse)
    monkeypatch.setattr(type(tmp_path), "open", refuse)
    attempts.begin()
    attempts.forget()


def test_instances_are_counted_apart(attempts: Attempts) -> None:
    other = Attempts("code")
    for _ in range(LIMIT - 1):
        fail(attempts)
    assert not fail(other)


def test_nothing_is_counted_outside_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    attempts = Attempts("chat")
    attempts.forget()
    assert not any(fail(attempts) for _ in range(LIMIT))


def test_a_directory_that_cannot_be_written_prevents_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "missing"))
    assert not fail(Attempts("chat"))
