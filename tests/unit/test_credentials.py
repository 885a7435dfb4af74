from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sglang_kit import credentials
from sglang_kit.credentials import Credentials

if TYPE_CHECKING:
    from pathlib import Path

KEY, ADMIN = "key-0123456789", "admin-0123456789"


def test_clients_send_the_api_key_and_never_the_admin_key() -> None:
    assert Credentials({"api_key": KEY, "admin_api_key": ADMIN}).headers == {"Authorization": f"Bearer {KEY}"}
    assert Credentials({"admin_api_key": ADMIN}).headers == {}


def test_every_value_is_masked_wherever_it_stands() -> None:
    secrets = Credentials({"api_key": KEY, "admin_api_key": ADMIN})
    text = f"['--api-key={KEY}'] {ADMIN}{KEY} other"
    assert secrets.masked(text) == "['--api-key=***'] ****** other"


def test_a_value_that_begins_with_another_one_leaves_no_rest() -> None:
    secrets = Credentials({"api_key": KEY, "admin_api_key": f"{KEY}-admin"})
    assert secrets.masked(f"{KEY} {KEY}-admin") == "*** ***"


def test_values_are_not_part_of_the_representation() -> None:
    assert KEY not in repr(Credentials({"api_key": KEY}))


def test_a_unit_finds_what_systemd_handed_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api_key").write_text(KEY, encoding="utf-8")
    (tmp_path / "of-a-drop-in.p12").write_bytes(b"\xff")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert credentials.of_unit().values == {"api_key": KEY}
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert credentials.of_unit().values == {}


def test_a_plan_names_the_files(tmp_path: Path) -> None:
    place = tmp_path / "chat.api_key"
    place.write_text(KEY, encoding="utf-8")
    assert credentials.of_plan({"secrets": {"api_key": str(place)}}).values == {"api_key": KEY}
    assert credentials.of_plan({}).values == {}
    place.unlink()
    assert credentials.of_plan({"secrets": {"api_key": str(place)}}).values == {}


@pytest.mark.parametrize(
    ("path", "content", "shown"),
    [
        (credentials.file_of("/etc/sglang", "chat", "api_key"), KEY, "hidden"),
        (credentials.file_of("/etc/sglang", "chat", "api_key"), None, ""),
        ("/etc/sglang/chat.env", "A=1\n", "A=1\n"),
        ("/etc/sglang/chat.env", None, ""),
    ],
)
def test_a_diff_shows_no_secret(path: str, content: str | None, shown: str) -> None:
    assert credentials.shown(path, content, "hidden") == shown


def test_a_mark_tells_a_change_and_nothing_else() -> None:
    mark = credentials.mark(KEY, "host/chat/api_key")
    assert mark == credentials.mark(KEY, "host/chat/api_key")
    assert (
        len({mark, credentials.mark(ADMIN, "host/chat/api_key"), credentials.mark(KEY, "host/b/api_key")})
        == 3
    )
    assert len(mark) == 16
