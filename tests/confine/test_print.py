# SPDX-License-Identifier: Apache-2.0
"""--print says what is enforced, and --selftest that it is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import sandbox
from tests.confine.launcher import SETUP, confine, program, shell

DIRECTORY_WRITE = {
    "write_file",
    "read_file",
    "read_dir",
    "remove_dir",
    "remove_file",
    "make_dir",
    "make_reg",
    "make_sock",
    "make_fifo",
    "make_sym",
    "refer",
    "truncate",
}


def printed(*words: object) -> dict[str, Any]:
    result = confine("--print", *words)
    assert (result.status, result.err) == (0, "")
    document = json.loads(result.out)
    assert isinstance(document, dict)
    return document


def test_the_kernel_and_what_is_handled_are_those_of_the_core() -> None:
    status = sandbox.status()
    document = printed("--ro", "/usr")
    assert document["abi"] == status.abi
    assert document["kernel_abi"] == status.kernel_abi
    assert document["errata"] == status.errata
    assert document["version"] in confine("--version").out
    assert {"execute", "truncate", "refer", "make_char", "make_block"} <= {*document["handled_fs"]}
    assert 64 < document["filter_length"] <= 512


def test_roots_have_the_rights_that_their_type_can_have(place: Path) -> None:
    (place / "file").write_text("")
    (place / "dir").mkdir()
    words = ("--rw", place / "dir", "--rw", place / "file", "--exec", "/usr", "--dev", "/dev/null")
    rows = {row["path"]: row for row in printed(*words)["roots"]}
    assert set(rows[f"{place}/dir"]["rights"]) == DIRECTORY_WRITE
    assert set(rows[f"{place}/file"]["rights"]) == {"write_file", "read_file", "truncate"}
    assert set(rows["/usr"]["rights"]) == {"execute", "read_file", "read_dir"}
    assert rows["/usr"]["access"] == ["read", "exec"]
    assert rows["/dev/null"]["access"] == ["read", "write", "device"]
    assert rows["/usr"]["from"] == "--exec"
    for row in rows.values():
        assert not {"make_char", "make_block"} & set(row["rights"])


def test_what_was_skipped_is_listed(place: Path) -> None:
    document = printed("--ro", "/usr", "--rw-opt", place / "nope")
    assert document["skipped"] == [f"{place}/nope"]
    paths = {row["path"] for row in printed("--baseline")["roots"]}
    skipped = set(printed("--baseline")["skipped"])
    assert "/usr" in paths
    assert not paths & skipped


def test_every_switch_shows() -> None:
    plain = printed("--ro", "/usr")
    assert (plain["net"], plain["supervise"], plain["new_session"]) == ("open", False, True)
    assert (plain["limits"], plain["cwd"], plain["handled_net"]) == ({}, None, [])
    full = printed(
        *("--ro", "/usr", "--net", "none", "--supervise", "--tty", "--shm", "--limits"),
        *("--cwd", "/usr", "--env", "A=secret", "--env", "PATH"),
    )
    assert (full["net"], full["supervise"], full["new_session"]) == ("none", True, False)
    assert full["limits"]["nofile"] <= 1024
    assert full["cwd"] == "/usr"
    assert full["environment"] == ["A", "PATH"]
    assert {row["path"] for row in full["roots"]} >= {"/dev/shm", "/dev/tty", "/dev/pts"}
    if full["abi"] >= 4:
        assert full["handled_net"] == ["bind_tcp", "connect_tcp"]


def test_no_value_of_a_variable_is_printed() -> None:
    text = confine("--print", "--ro", "/usr", env={"TOKEN": "hunter2"}).out
    assert "TOKEN" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "name", [b'quote" \\ back', b"\xff\xfe raw", "nö 😀".encode(), b"\x01\t\n\x7f"]
)
def test_any_name_comes_back_from_the_json(name: bytes, place: Path) -> None:
    path = os.fsencode(place) + b"/" + name
    Path(os.fsdecode(path)).mkdir()
    rows = printed("--ro", path)["roots"]
    assert os.fsencode(rows[0]["path"]) == path


def test_nothing_runs_and_nothing_is_confined(place: Path) -> None:
    printed("--baseline", "--rw", place, "--", "/bin/touch", place / "ran")
    assert list(place.iterdir()) == []


def test_what_cannot_be_enforced_is_not_printed(place: Path) -> None:
    refused = confine("--print", "--ro", place / "nope")
    assert (refused.status, refused.out) == (SETUP, "")


def test_an_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [program(), "--print", "--baseline"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == SETUP
    assert b"(ENOSPC)" in done.stderr


# ---- the self-test ----


def test_the_selftest_proves_every_row_and_leaves_nothing(place: Path) -> None:
    environment = {"TMPDIR": str(place)}
    text = confine("--selftest", env=environment)
    assert (text.status, text.err) == (0, "")
    assert " 0 failed" in text.out.splitlines()[-1]
    result = confine("--selftest", "--json", env=environment)
    document = json.loads(result.out)
    assert document["ok"] is True
    assert document["abi"] == sandbox.status().abi
    rows = document["rows"]
    assert len({row["name"] for row in rows}) == len(rows) > 50
    assert all(row["ok"] or row["skipped"] for row in rows)
    denied = [row for row in rows if row["expected"] > 0 and not row["skipped"]]
    assert all(row["confined"] == row["expected"] for row in denied)
    assert list(place.iterdir()) == []


def test_a_selftest_without_a_place_is_a_failure(place: Path) -> None:
    refused = confine("--selftest", env={"TMPDIR": str(place / "nope")})
    assert refused.status == SETUP
    assert f"'{place}/nope'" in refused.message
    assert "TMPDIR" in refused.message


def test_a_selftest_inside_a_sandbox_is_no_proof() -> None:
    """It must fail rather than take the outer sandbox's denials for its own."""
    inner = shell(
        "exec " + str(sandbox.helper_path()) + " --selftest", "--exec", sandbox.helper_path()
    )
    assert inner.status == SETUP
