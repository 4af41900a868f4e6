"""Golden vectors: input → output facts of upstream 1.8.1, from ``tests/vectors`` or from VPA_VECTORS.

``VPA_VECTORS=DIR pytest tests/core -k vector`` runs the same tests on another folder of ``*.jsonl`` files.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BUNDLED = Path(__file__).parent.parent / "vectors"

Case = dict[str, Any]

ran: dict[str, int] = {}
"""Family → cases that were checked in this run, printed at the end by ``tests/conftest.py``."""


def load(family: str) -> list[Case]:
    """All cases of *family*; a missing or empty file is an error, never an empty success."""
    folder = os.environ.get("VPA_VECTORS")
    if folder:
        text = (Path(folder) / f"{family}.jsonl").read_text(encoding="utf-8")
    else:
        text = gzip.decompress((BUNDLED / f"{family}.jsonl.gz").read_bytes()).decode()
    cases: list[Case] = [json.loads(line) for line in text.splitlines() if line.strip()]
    assert cases, f"the vector family {family} has no cases"
    return cases


def check(family: str, cases: Iterable[Case], outcome: Callable[[Case], Any], expected: str = "out") -> None:
    """Compare ``outcome(case)`` with ``case["out"]`` for every case and report the first differences.

    A case in which upstream panics only has to end in no crash.
    """
    wrong: list[str] = []
    count = 0
    for case in cases:
        count += 1
        want = case[expected]
        got = outcome(case)
        if isinstance(want, dict) and "panic" in want:
            continue
        if got != want:
            wrong.append(f"{case['id']}:\n   got  {got!r}\n   want {want!r}")
    ran[family] = ran.get(family, 0) + count
    assert not wrong, f"{len(wrong)} of {count} {family} cases differ:\n" + "\n".join(wrong[:5])
