"""What the API server's answers to an eviction or a resize mean: a reason, a pause, and whom it concerns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from vpa.reasons import Reason, Refusal

DISRUPTION_BUDGET: Final = "DisruptionBudget"
NODE_CAPACITY: Final = "NodeCapacity"
UNSUPPORTED_PLATFORM: Final = "UnsupportedPlatform"

FIRST_PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(minutes=5)
SHORT: Final = timedelta(seconds=10)
LONG: Final = timedelta(hours=1)
NEVER: Final = timedelta(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A failed call, as the API server's Status tells it."""

    code: int
    """The HTTP status; 0 when no answer came."""
    reason: str = ""
    message: str = ""
    causes: tuple[str, ...] = ()
    """``details.causes[].reason``."""
    retry_after: float | None = None
    """The Retry-After header in seconds."""


class Scope(Enum):
    """Whom an answer concerns."""

    POD = "pod"
    GROUP = "group"
    CLUSTER = "cluster"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """What follows from an answer."""

    refusal: Refusal
    pause: timedelta
    """No new try before; `NEVER`: the pod is gone or another, so there is nothing to try."""
    scope: Scope = Scope.POD
    refused: bool = True
    """The server judged the request; False: it could not, and the same may succeed later."""
    infeasible: bool = False
    """A resize that this node can never make."""
    feature_missing: bool = False
    """The cluster knows no ``pods/resize``."""
    misconfigured: bool = False
    """The user has to mend something, so it belongs on the VPA."""


def eviction(answer: Answer, *, failures: int = 0) -> Meaning:
    """The meaning of a refused eviction; *failures* are the refusals in a row before this one."""
    said = answer.message
    if answer.code == 429 and DISRUPTION_BUDGET in answer.causes:
        if answer.retry_after:
            return _blocked(said, timedelta(seconds=answer.retry_after))
        return _blocked(said, min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE))
    if answer.code == 403 and "disruption" in said.lower():
        return _blocked(said, LONG)
    if answer.code == 500 and "more than one PodDisruptionBudget" in said:
        return Meaning(
            refusal=Refusal(
                Reason.DISRUPTION_BUDGET_BLOCKED,
                f"two PodDisruptionBudgets select the pod, so nobody can evict it ({said}): remove one",
            ),
            pause=LONG,
            scope=Scope.GROUP,
            misconfigured=True,
        )
    common = _common(answer, failures=failures)
    if common is not None:
        return common
    return Meaning(
        refusal=Refusal(Reason.EVICTION_REFUSED, f"the API server refused the eviction ({_said(answer)})"),
        pause=LONG,
    )


def resize(answer: Answer, *, failures: int = 0) -> Meaning:
    """The meaning of a refused resize; *failures* are the refusals in a row before this one."""
    said = answer.message
    if answer.code == 403 and NODE_CAPACITY in answer.causes:
        text = (
            f"the pod's node is too small for the target ({said}): a lower target or another node is needed"
        )
        return Meaning(refusal=Refusal(Reason.RESIZE_INFEASIBLE, text), pause=LONG, infeasible=True)
    if answer.code == 403 and UNSUPPORTED_PLATFORM in answer.causes:
        return _refused(f"the pod's node cannot resize in place ({said})")
    if answer.code == 403 and "exceeded quota" in said:
        return Meaning(
            refusal=Refusal(Reason.QUOTA_EXCEEDED, f"{said}: raise the quota, or lower maxAllowed"),
            pause=SHORT * 30,
        )
    if (
        answer.code == 404 and "the server could not find the requested resource" in said
    ) or answer.code == 405:
        return Meaning(
            refusal=Refusal(
                Reason.RESIZE_REFUSED, "this cluster cannot resize pods in place (Kubernetes before 1.33)"
            ),
            pause=LONG,
            scope=Scope.CLUSTER,
            feature_missing=True,
        )
    common = _common(answer, failures=failures)
    if common is not None:
        return common
    if answer.code == 422 and "qos class may not change" in said.lower():
        return Meaning(
            refusal=Refusal(
                Reason.QOS_WOULD_CHANGE,
                f"a resize may not change the pod's QoS class ({said}): only a new pod can",
            ),
            pause=LONG,
        )
    return _refused(f"the API server refused the resize ({_said(answer)})")


def _common(answer: Answer, *, failures: int) -> Meaning | None:
    """Answers that mean the same for both."""
    if answer.code == 404:
        return Meaning(
            refusal=Refusal(Reason.POD_GONE, "the pod no longer exists"), pause=NEVER, refused=False
        )
    if answer.code == 409:
        return Meaning(
            refusal=Refusal(
                Reason.POD_CHANGED, "the pod was replaced or changed meanwhile; the next pass looks again"
            ),
            pause=NEVER,
            refused=False,
        )
    if answer.code in (0, 408, 429) or answer.code >= 500:
        pause = (
            timedelta(seconds=answer.retry_after)
            if answer.retry_after
            else min(SHORT * 2**failures, LONGEST_PAUSE)
        )
        overloaded = answer.code == 429
        return Meaning(
            refusal=Refusal(
                Reason.SERVER_BUSY, f"the API server could not do it now ({_said(answer)}); it is tried again"
            ),
            pause=pause,
            scope=Scope.CLUSTER if overloaded else Scope.POD,
            refused=False,
        )
    return None


def _blocked(said: str, pause: timedelta) -> Meaning:
    return Meaning(
        refusal=Refusal(
            Reason.DISRUPTION_BUDGET_BLOCKED,
            f"a PodDisruptionBudget allows no eviction now ({said}): more pods must be ready",
        ),
        pause=pause,
        scope=Scope.GROUP,
    )


def _refused(message: str) -> Meaning:
    return Meaning(refusal=Refusal(Reason.RESIZE_REFUSED, message), pause=LONG)


def _said(answer: Answer) -> str:
    if answer.code == 0:
        return answer.message or "no answer"
    return f"{answer.code} {answer.message or answer.reason}".strip()
