"""Why a pod is changed or left alone: stable words, the same in condition, event, metric label and CLI.

``docs/reasons.md`` says of each what it means and what would have to change; a test keeps both equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """One word per cause."""

    # Nothing is done, and nothing is wrong.
    UP_TO_DATE = "UpToDate"
    WITHIN_BOUNDS = "WithinBounds"
    TOO_YOUNG = "TooYoung"
    BELOW_THRESHOLD = "BelowThreshold"
    BOOST_ACTIVE = "BoostActive"
    POD_FINISHED = "PodFinished"
    POD_TERMINATING = "PodTerminating"

    # Nothing is done, because the user said so or nobody asked.
    NO_VPA = "NoVPA"
    NO_RECOMMENDATION = "NoRecommendation"
    NO_CONTROLLER = "NoController"
    MODE_OFF = "ModeOff"
    MODE_INITIAL = "ModeInitial"
    CONTAINER_OPTED_OUT = "ContainerOptedOut"
    RESOURCE_NOT_CONTROLLED = "ResourceNotControlled"
    RESOURCE_CLAIMS = "ResourceClaims"
    ZERO_LIMIT = "ZeroLimit"
    MIRROR_POD = "MirrorPod"
    INVALID_VPA = "InvalidVPA"
    UPSTREAM_FAILS = "UpstreamFails"
    FEATURE_GATE_OFF = "FeatureGateOff"
    EVICTION_REQUIREMENT_NOT_MET = "EvictionRequirementNotMet"
    CONFLICT = "Conflict"
    HPA_CONFLICT = "HPAConflict"

    # Nothing is done now: too much of the group would be down.
    TOO_FEW_REPLICAS = "TooFewReplicas"
    BUDGET_SPENT = "BudgetSpent"
    POD_PENDING = "PodPending"
    DISRUPTION_BUDGET_BLOCKED = "DisruptionBudgetBlocked"

    # Nothing is done, because it would not work or would do harm.
    RESIZE_IN_PROGRESS = "ResizeInProgress"
    RESIZE_DEFERRED = "ResizeDeferred"
    RESIZE_INFEASIBLE = "ResizeInfeasible"
    RESIZE_REFUSED = "ResizeRefused"
    QOS_WOULD_CHANGE = "QoSWouldChange"
    EVICTION_REFUSED = "EvictionRefused"
    NO_SIZE_FITS = "NoSizeFits"
    NO_NODE_FITS = "NoNodeFits"
    QUOTA_EXCEEDED = "QuotaExceeded"
    LIMIT_BELOW_USAGE = "LimitBelowUsage"
    WEBHOOK_NOT_READY = "WebhookNotReady"
    LOOP_BREAKER = "LoopBreaker"
    HISTORY_LOADING = "HistoryLoading"
    SERVER_BUSY = "ServerBusy"
    POD_GONE = "PodGone"
    POD_CHANGED = "PodChanged"
    NEXT_PASS = "NextPass"

    # Nothing is done to a new pod, because it must not wait.
    NOT_SYNCED = "NotSynced"
    OWNER_UNKNOWN = "OwnerUnknown"
    UNREADABLE = "Unreadable"
    INTERNAL_ERROR = "InternalError"

    # Something is done.
    OUTSIDE_BOUNDS = "OutsideBounds"
    DRIFT = "Drift"
    QUICK_OOM = "QuickOOM"
    BOOST_EXPIRED = "BoostExpired"
    RESIZE_FELL_BACK = "ResizeFellBack"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not: the word, and a sentence that says what would have to change."""

    reason: Reason
    message: str
