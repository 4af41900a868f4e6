"""Where we differ from upstream: each difference is one named rule, and a preset sets them all.

``--compatibility=upstream`` sets every rule to upstream 1.8's behaviour, ``safe`` (the default) to ours.
A flag that is given explicitly wins over the preset. ``docs/differences.md`` has a row for each rule.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vpa import flags

SAFE = flags.SAFE
UPSTREAM = flags.UPSTREAM


def rule(text: str) -> Any:
    """A field of `Rules`, also a flag of its own name; *text*, its help, says what holds when it is on."""
    return flags.flag(True, text, upstream=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules(flags.Group):
    """One value handed to the core functions; a field is True where our behaviour replaces upstream's.

    Each field is written ``name: bool = rule("What holds when it is on.")`` and is the flag ``--name`` too.
    """

    # Updater
    break_eviction_loops: bool = rule(
        "Evictions of a group stop when a replacement does not carry its target, and all evictions when "
        "many do not."
    )
    foresee_node_fit: bool = rule("No pod is given a size that no node it may run on can hold.")
    foresee_quota: bool = rule("No pod is given a size that a ResourceQuota would refuse.")
    foresee_disruption_budgets: bool = rule(
        "PodDisruptionBudgets are read first: no eviction that they refuse, no restart in place that "
        "they forbid."
    )
    foresee_resize_refusals: bool = rule(
        "A resize that the API server is bound to refuse (QoS class, restart policy, node size) is not tried."
    )
    resize_apart_from_eviction: bool = rule(
        "Few replicas, eviction requirements and a stale admission lease forbid evictions, not harmless "
        "resizes."
    )
    budget_in_every_mode: bool = rule(
        "Mode InPlace keeps the disruption budget and waits for deferred resizes."
    )
    keep_memory_limit_above_use: bool = rule(
        "A memory limit is not lowered below the present use plus a tenth."
    )
    wait_for_history: bool = rule(
        "While history loads or less than a day is known nothing is evicted, and resizes only grow."
    )
    resize_timers_from_conditions: bool = rule(
        "A resize is late by the transition time and generation of its condition, not by its first sighting."
    )
    budget_for_unknown_owners: bool = rule(
        "Pods of an unknown kind of owner have the budget of their live group; pods without one are "
        "left alone."
    )
    boost_keeps_min_replicas: bool = rule("A boosted pod does not lift the minimum of replicas of its group.")
    count_readiness: bool = rule(
        "A pod that is not ready counts as down where a ready one would be disrupted."
    )
    count_open_attempts: bool = rule(
        "Evictions and resizes of earlier passes count against the budget until they are finished."
    )
    fall_back_only_when_refused: bool = rule(
        "A failed resize leads to eviction only when it was refused, not when the server was busy."
    )
    remember_refusals: bool = rule(
        "A refused resize is tried again when its target shrinks or an hour is over, and forgotten once "
        "one works."
    )
    see_unscheduled_pods: bool = rule(
        "Pods that have no node yet are seen: as pods that are down, and as replacements of evicted ones."
    )
    see_oom_at_once: bool = rule(
        "An OOM kill counts when the container's state shows it, not only after its restart."
    )
    patch_only_changes: bool = rule(
        "A resize names only values that change, of containers that the admission controller saw."
    )
    unboost_completely: bool = rule(
        "The end of a startup boost gives the CPU back in every case and touches no other container."
    )
    requirements_need_a_target: bool = rule(
        "An eviction requirement is not met by a resource that has no target."
    )

    # History and live usage
    history_weighs_steps: bool = rule(
        "A point of history weighs and counts as many samples as minutes lie in its step, not one."
    )
    history_memory_peaks: bool = rule(
        "Memory of the past is the largest use in each step, not the use at its end."
    )
    history_rounds_up: bool = rule(
        "Usage from history is rounded up to whole millicores and bytes, as all other usage is, not down."
    )
    history_survives_errors: bool = rule(
        "A failed query or a bad series costs only itself and is asked for again; pod labels may be a vector."
    )
    absent_usage_is_no_sample: bool = rule(
        "A resource that is missing from the metrics of a container is no sample, not one of 0."
    )

    # Sizes of pods: updater and admission
    limits_fit_int64: bool = rule(
        "Limits are exact; one that would not fit in 64 bits stays, or becomes the request if that is larger."
    )

    defaults_per_resource: bool = rule(
        "Default limits of several LimitRanges are joined per resource; the last object does not hide others."
    )
    admissible_pods: bool = rule(
        "Sizes are fitted to what the API server accepts: LimitRange bounds and ratio, pod-level resources."
    )
    ordered_bounds: bool = rule(
        "Capped to a pod, the lower bound is never above the target, nor the target above the upper bound."
    )

    spare_unmanaged_containers: bool = rule(
        "A Pod LimitRange resizes containers without recommendation only if the pod as written breaks it."
    )
    whole_shares: bool = rule(
        "Shares of a Pod LimitRange reach its minimum to the byte and its maximum never makes one negative."
    )
    whole_bounds: bool = rule(
        "minAllowed and maxAllowed finer than a millicore or a byte are accepted and rounded up."
    )
    range_without_ratio: bool = rule(
        "With RequestsOnly a LimitRange bounds the request by its own figures, not by a ratio to the limit."
    )

    one_choice: bool = rule(
        "Updater and webhook always follow the same VPA of a pod: the oldest that could act on it."
    )

    policy_at_once: bool = rule(
        "Opted-out containers and uncontrolled resources are left alone whatever the status still says."
    )
    leave_alone: bool = rule(
        "Mirror pods, containers with ResourceClaims and resources with a limit of 0 are left alone."
    )

    boosts_do_no_harm: bool = rule(
        "A startup boost without type, figure or CPU to start from is ignored, and none lowers the CPU."
    )
    only_useful_patches: bool = rule(
        "New pods get no empty resources, and nothing at all where the mode is Off and no boost applies."
    )

    one_policy_per_container: bool = rule(
        "A VPA with two policies for one container is refused, or warned of if it was so before."
    )
    proper_answers: bool = rule(
        "Calls of the webhook that are no admission reviews are answered with HTTP errors, not with 200."
    )

    # Recommender: history
    history_by_controller: bool = rule(
        "History belongs to a container of a workload and lives as long as that, not to a set of labels."
    )
    present_containers: bool = rule(
        "Only containers that a pod or the pod template names are recommended and share the pod minimum."
    )
    unreadable_targets_keep: bool = rule(
        "A target that cannot be read changes nothing but a condition; history and recommendation stay."
    )
    settings_end_with_policy: bool = rule(
        "OOM and window settings of a container policy end with it; of two VPAs the oldest one's hold."
    )
    oom_at_once: bool = rule("An OOM kill changes the recommendation at once, not in the next tick.")
    oom_while_away: bool = rule(
        "OOM kills of a time when no recommender ran are learned from what pods and events still tell."
    )
    evictions_of_many: bool = rule(
        "An eviction for lack of memory counts for each container that the kubelet names, not only for one."
    )
    plausible_times: bool = rule(
        "Usage stamped more than ten minutes ahead of our clock is no sample, and a kill stamped so was now."
    )

    # Recommender: checkpoints and status
    late_checkpoints: bool = rule(
        "Checkpoints of a VPA that appears later, or changes its recommender, are loaded then."
    )
    richer_checkpoints_stay: bool = rule("A checkpoint is never overwritten by one that knows less.")
    running_peaks: bool = rule(
        "The memory peaks of the running windows survive a restart, in an annotation of the checkpoint."
    )
    spread_checkpoints: bool = rule(
        "Each checkpoint is written within ten minutes, if it has changed, not all in each tick."
    )
    collect_old_checkpoints: bool = rule(
        "Checkpoints of containers that are gone are deleted when their history has expired."
    )
    own_conditions_only: bool = rule(
        "A status write replaces only conditions that the recommender owns, and never an unseen change."
    )
    more_conditions: bool = rule(
        "The conditions LowConfidence, FetchingHistory, Conflict and Capped are set, and the updater's."
    )
    wary_of_other_writers: bool = rule(
        "Who else writes recommendations of our VPAs is said, and then each is written once a minute at most."
    )
    first_tick_at_once: bool = rule("The first tick comes right after the start, not an interval later.")

    # Owners and targets
    kinds_by_group: bool = rule(
        "A target whose kind is only named like a built-in one is looked up in its own API group."
    )
    parents_need_selectors: bool = rule(
        "An owner whose scale has no selector is passed over; as a target it lends that of its only workload."
    )

    def override(self, **explicit: Any) -> Rules:
        """The same rules with the explicitly given ones replaced."""
        return replace(self, **explicit)


def preset(name: str) -> Rules:
    """The rules of ``safe`` or ``upstream``; any other name is a ``ValueError``."""
    if name == SAFE:
        return Rules()
    if name == UPSTREAM:
        return Rules(**{field.name: False for field in fields(Rules)})
    raise ValueError(f'compatibility "{name}" is unknown; use "{SAFE}" or "{UPSTREAM}"')
