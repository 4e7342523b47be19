"""`swarm bench compare A.json B.json`: what changed from A to B, figure by figure.

A change is B / A for a figure where less is better, and A / B for a figure where more is better:
above 1 is worse. The spread of a change goes from the best round of B over the worst round of A to
the worst round of B over the best round of A. Only ratios to a floor can fail a comparison, since
absolute times differ between machines and hours. A ratio fails when it got worse by more than the
margin *and* every round of B is worse than every round of A.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bench.report.figure import Figure, significant
from bench.report.tables import new_table
from nodes.console import out, print_json, report

Verdict = Literal["worse", "unclear", "same", "better"]
BASELINE = Path(__file__).with_name("hop_baseline.json")
"""The stored result of `swarm bench hop`, to compare a fresh result with."""

NOISE_FACTOR = 1.25
"""The factor within which a change counts as noise, unless the caller names another margin."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both documents; change, low and high are ratios, above 1 is worse."""

    name: str
    unit: str
    before: float
    after: float
    change: float
    low: float
    high: float
    floor: bool
    verdict: Verdict


def read_document(path: str | Path) -> dict[str, Any]:
    """A benchmark's JSON document. Raises `ValueError` that says what is wrong with the file."""
    try:
        doc = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(doc, dict) or not isinstance(doc.get("figures"), dict):
        raise ValueError(f"{path} has no figures: write it with `swarm bench … -o {path}`")
    return doc


def compare(
    before: dict[str, Any], after: dict[str, Any], margin: float = NOISE_FACTOR
) -> dict[str, Any]:
    """The figures that both documents have, the names that only one has, and what got worse.

    margin: the factor within which a change is noise. Raises `ValueError` when the documents are
    of different benchmarks or have no figure in common.
    """
    if before.get("bench") != after.get("bench"):
        raise ValueError(f"{before.get('bench')!r} and {after.get('bench')!r} are not the same")
    ours, theirs = before["figures"], after["figures"]
    common = [name for name in ours if name in theirs]
    if not common:
        raise ValueError("the two results have no figure in common")
    changes = [
        change(name, Figure.from_doc(ours[name]), Figure.from_doc(theirs[name]), margin)
        for name in common
    ]
    return {
        "v": 1,
        "bench": "compare",
        "of": before.get("bench"),
        "margin": margin,
        "changes": [asdict(item) for item in changes],
        "only_before": sorted(set(ours) - set(theirs)),
        "only_after": sorted(set(theirs) - set(ours)),
        "worse": [item.name for item in changes if item.floor and item.verdict == "worse"],
    }


def change(name: str, before: Figure, after: Figure, margin: float) -> Change:
    """How one figure changed. The ratio is NaN unless the figure is positive on both sides."""
    values = (before.value, before.low, before.high, after.value, after.low, after.high)
    if min(values) <= 0:
        ratio = low = high = math.nan
    elif after.better == "higher":
        ratio, low, high = (
            before.value / after.value,
            before.low / after.high,
            before.high / after.low,
        )
    else:
        ratio, low, high = (
            after.value / before.value,
            after.low / before.high,
            after.high / before.low,
        )
    return Change(
        name,
        after.unit,
        before.value,
        after.value,
        _rounded(ratio),
        _rounded(low),
        _rounded(high),
        before.floor and after.floor,
        verdict(ratio, low, high, margin),
    )


def _rounded(ratio: float) -> float:
    return ratio if math.isnan(ratio) else significant(ratio)


def verdict(ratio: float, low: float, high: float, margin: float) -> Verdict:
    """`worse` or `better` when the change is beyond the margin and the rounds do not overlap."""
    if math.isnan(ratio):
        return "unclear"
    if ratio > margin:
        return "worse" if low > 1 else "unclear"
    if ratio < 1 / margin:
        return "better" if high < 1 else "unclear"
    return "same"


def run_compare(
    before: str,
    after: str,
    fail_above: float = 0.0,
    as_json: bool = False,
    with_unchanged: bool = False,
) -> int:
    """The command. fail_above: the margin that makes the exit code 1; 0 only reports."""
    try:
        result = compare(read_document(before), read_document(after), fail_above or NOISE_FACTOR)
    except ValueError as error:
        return report(error, as_json)
    if as_json:
        print_json(json.loads(json.dumps(result), parse_constant=lambda _: None))
    else:
        _show(result, with_unchanged)
    return 1 if fail_above and result["worse"] else 0


def _show(result: dict[str, Any], with_unchanged: bool) -> None:
    title = f"{result['of']}: above 1 is worse"
    table = new_table(title, "figure", "before", "after", "change (rounds)", "")
    colours = {"worse": "red", "better": "green", "unclear": "yellow", "same": "dim"}
    for item in result["changes"]:
        if not (with_unchanged or item["floor"] or item["verdict"] in ("worse", "better")):
            continue
        table.add_row(
            item["name"] if item["floor"] else f"[dim]{item['name']}[/]",
            f"{item['before']:g}",
            f"{item['after']:g} {item['unit']}",
            f"{item['change']:.3g} ({item['low']:.3g}-{item['high']:.3g})",
            f"[{colours[item['verdict']]}]{item['verdict']}[/]",
        )
    out.print(table)
    for key, text in (("only_before", "only in the first"), ("only_after", "only in the second")):
        if result[key]:
            out.print(f"{text}: {len(result[key])} figures", style="dim")
    worse = result["worse"]
    out.print(
        f"{len(worse)} ratios to a floor got worse by more than {result['margin']:g}x, beyond "
        "the spread of their rounds" + (": " + ", ".join(worse) if worse else "")
    )
