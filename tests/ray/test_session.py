"""Connecting to a Ray that somebody else started."""

from __future__ import annotations

import pytest

from leanwam.rollouts.cluster import session


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(monkeypatch):
    """What an import of Ray would find after ``_send_token``; undone with the test."""
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # so that the end of the test restores it
    monkeypatch.delenv("RAY_AUTH_MODE")
    session._send_token()
    return session.os.environ.get("RAY_AUTH_MODE")


def test_without_a_token_nothing_is_decided(home, monkeypatch):
    assert mode(monkeypatch) is None


def test_a_token_file_is_used_for_an_address_too(home, monkeypatch):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0" * 64)
    assert mode(monkeypatch) == "token"


def test_a_token_in_the_environment_is_sent(home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    assert mode(monkeypatch) == "token"


def test_who_opted_out_stays_out(home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    session._send_token()
    assert session.os.environ["RAY_AUTH_MODE"] == "disabled"
