# SPDX-License-Identifier: Apache-2.0
"""What judges the kernels' answers and the figures: a guest that falls silent must not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import report
from tests.bench.rows import RATIO, ROWS, Measured, Row, ratio
from tests.bench.workers import percentile, rotated, sample
from tests.kernels.boot import Tap, cpio_entry, version_key


def read(*lines: str) -> Tap:
    tap = Tap()
    for line in lines:
        tap.read(line)
    return tap


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["1..2", "ok 1 - a", "# | noise", "ok 2 - b"], ""),
        (["ok 1 - a"], "the guest announced no plan"),
        ([], "the guest announced no plan"),
        (["1..0"], "the guest announced no plan"),
        (["1..2", "ok 1 - a"], "1 of 2 lines are missing"),
        (["1..2", "ok 1 - a", "not ok 2 - b"], "1 of 2 failed"),
        (["1..2", "ok 1 - a", "ok 3 - c"], "1 of 2 failed"),
        (["1..2", "ok 1 - a", "ok 1 - a"], "1 of 2 failed"),
        (["1..1", "ok 1 - a", "Bail out! qemu ended"], "Bail out! qemu ended"),
        (["1..1", "[ 1.2] ok 1 - a"], "1 of 1 lines are missing"),
    ],
)
def test_a_guest_passes_only_when_every_planned_line_came_and_held(
    lines: list[str], complaint: str
) -> None:
    assert read(*lines).complaint == complaint


def test_the_newest_kernel_is_newest_by_number_not_by_spelling() -> None:
    names = ["linux-image-6.12.9+deb12-amd64", "linux-image-6.12.117+deb12-amd64"]
    assert max(names, key=version_key) == names[1]


def test_a_cpio_entry_is_padded_to_words_and_says_its_sizes() -> None:
    entry = cpio_entry(7, "init", 0o100755, b"abcde", (0, 0))
    assert entry.startswith(b"070701" + b"00000007" + b"000081ED")
    assert entry[54:62] == b"00000005"
    assert entry[94:102] == b"00000005"  # name with its NUL
    assert len(entry) == 116 + 8


def test_everyone_goes_first_equally_often() -> None:
    names = ["a", "b", "c"]
    orders = [rotated(names, turn) for turn in range(6)]
    assert all(sorted(order) == names for order in orders)
    assert sorted(order[0] for order in orders) == ["a", "a", "b", "b", "c", "c"]
    assert sorted(order[-1] for order in orders) == ["a", "a", "b", "b", "c", "c"]


def test_a_percentile_of_few_values_is_one_of_them() -> None:
    assert percentile([3, 1, 2], 0.1) == 1
    assert percentile([3, 1, 2], 0.9) == 3
    assert percentile([5], 0.5) == 5


def test_a_ratio_is_of_medians_and_the_noise_is_the_floor_against_itself() -> None:
    samples = {
        "ours": sample([4000, 6000, 5000]),
        "floor": sample([1000, 2000, 3000]),
        "floor again": sample([1000, 2200, 9000]),
    }
    result = ratio(samples)
    assert result.value == pytest.approx(2.5)
    assert result.p10 == pytest.approx(4.0)
    assert result.noise == pytest.approx(1.1)


def row(target: float, *, at_most: bool = True) -> Row:
    return Row("key", "what", "floor", target, RATIO, lambda scene, factor: Measured(1), at_most)


@pytest.mark.parametrize(
    ("bounded", "result", "verdict"),
    [
        (row(1.5), Measured(1.5), "holds"),
        (row(1.5), Measured(1.501), "missed"),
        (row(0.8, at_most=False), Measured(0.8), "holds"),
        (row(0.8, at_most=False), Measured(0.79), "missed"),
        (row(1.5), "bwrap is not installed", "not measured"),
    ],
)
def test_a_target_is_met_at_its_bound_and_not_past_it(
    bounded: Row, result: Measured | str, verdict: str
) -> None:
    assert report.verdict(bounded, result) == verdict
    assert verdict in report.cells(bounded, result)[-1]


def test_every_row_of_the_table_has_a_name_of_its_own() -> None:
    assert len({entry.key for entry in ROWS}) == len(ROWS)


def test_a_section_of_the_document_is_replaced_between_its_markers_only(tmp_path: Path) -> None:
    document = tmp_path / "performance.md"
    document.write_text("head\n<!-- a: begin -->\nold\n<!-- a: end -->\ntail\n")
    report.write_section("a", "new", document)
    assert document.read_text() == "head\n<!-- a: begin -->\n\nnew\n\n<!-- a: end -->\ntail\n"
    with pytest.raises(ValueError, match="has no markers for 'b'"):
        report.write_section("b", "new", document)
