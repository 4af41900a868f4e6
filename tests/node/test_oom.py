"""Containers that need more memory than they may have: from OOM kill to running, without anybody's help."""

from __future__ import annotations

import pytest

from tests.node.figures import Figures
from tests.node.oom import NEEDS, rescue
from tests.node.workloads import MI, Namespace, statuses
from vpa.quantities import Quantity

pytestmark = pytest.mark.usefixtures("chart")


@pytest.mark.brief
def test_a_container_that_needs_300mi_with_a_limit_of_100mi_reaches_a_running_state(
    namespace: Namespace, figures: Figures
) -> None:
    found = rescue(namespace, "needy")
    figures("rescue", found)
    (pod,) = namespace.pods("needy")
    limit = statuses(pod)[0]["resources"]["limits"]["memory"]
    assert Quantity.parse(limit).value() > NEEDS * MI
    assert 1 <= found.kills <= 10
