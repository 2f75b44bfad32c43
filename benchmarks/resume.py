"""Kill points x methods: the digest of every resumed run beside that of the uninterrupted one.

Usage:
    .venv/bin/python benchmarks/resume.py
    .venv/bin/python benchmarks/resume.py --only "fedavg" --output /tmp/resume.json

Runs tests/integration/test_resume_kill.py, which SIGKILLs whole `fedapp run`s and compares what is
resumed with what was never killed, and writes down what it saw: the adapter after the round that
was cut short. A few minutes on two cores with nothing else to do.
Results: benchmarks/results/resume.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET  # of pytest itself
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "resume.json"
TEST = "tests/integration/test_resume_kill.py"


def main() -> None:
    """Run the test, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="pytest's -k")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-m", "chaos", TEST, f"--junit-xml={report}"]
        command += ["-o", "junit_family=xunit1"]  # whose properties are any test's to note
        command += ["-k", args.only] if args.only else []
        code = subprocess.run(command, cwd=HERE.parent, check=False).returncode
        rows = read(report)
    for row in rows:
        same = "same" if row["same"] else "DIFFERENT"
        print(f"{row['case']:34} {row['point']:18} round {row['round']} {row['resumed']} {same}")
    document = {
        "benchmark": "SIGKILL of the whole run at a point, then resume: digest of the adapter",
        "same": sum(row["same"] for row in rows),
        "killed": len(rows),
        "passed": code == 0,
        "runs": rows,
        **describe(load_before, "flwr", "ray", "torch", "numpy"),
    }
    args.output.parent.mkdir(exist_ok=True)
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {args.output}")
    raise SystemExit(code)


def read(report: Path) -> list[dict[str, Any]]:
    """Return what the tests noted of every kill: case, point, round and digests."""
    rows = []
    for test in ET.parse(report).iter("testcase"):  # noqa: S314
        passed = test.find("failure") is None and test.find("error") is None
        for noted in test.iter("property"):
            row = json.loads(noted.attrib["value"])
            rows.append({**row, "same": passed and row["resumed"] == row["uninterrupted"]})
    return rows


if __name__ == "__main__":
    main()
