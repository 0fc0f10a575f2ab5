"""Adds up what test_opinfo.py ran and prints it at the end; in a parallel run the counts arrive with the reports."""

from collections import Counter

PROPERTY = "opinfo"


def pytest_terminal_summary(terminalreporter):
    counts, excepted = Counter(), []
    for report in sum(terminalreporter.stats.values(), []):
        if getattr(report, "when", None) != "call":
            continue
        for name, value in report.user_properties:
            if name == PROPERTY:
                counts.update(value["counts"])
                excepted += value["excepted"]
    opinfos = counts.pop("OpInfos", 0)
    if not opinfos:
        return
    terminalreporter.section("operators against the native device, bit for bit")
    terminalreporter.write_line(
        f"OpInfos: {opinfos}, of these excepted: {len(excepted)} ({100 * len(excepted) / opinfos:.1f} %); "
        + ", ".join(f"{name}: {count}" for name, count in counts.items())
    )
    for line in sorted(excepted):
        terminalreporter.write_line(f"  excepted: {line}")
