"""The one door to Kubernetes: connection, copies of collections, writes, events, leases, owners, targets.

Async and typed. Nothing above this package imports ``kubernetes``, and nothing in it decides about pods. One
event loop per process; names are used by module (``from vpa.cluster import reflectors, writes``).

connection
    ``Connection``: ``await Connection.open(kubeconfig=…, servers=…, qps=…, burst=…, user_agent=…)``, an async
    context manager. ``request`` (bytes in, bytes out), ``stream`` (watches), ``fence``.
errors
    ``ClusterError`` > ``ConfigurationError``, ``CacheNotSyncedError``, ``RequestError`` > ``Unreachable``,
    ``Unreadable``, ``StatusError`` > ``NotFound``, ``Conflict`` (> ``AlreadyExists``), ``Forbidden``,
    ``Unauthorized``, ``Gone``, ``Invalid``, ``BadRequest``, ``TooManyRequests``, ``ServerError``.
    A ``StatusError`` has ``code``, ``reason``, ``causes``, ``has_cause()``, ``retry_after``.
resources
    ``Resource`` and its constants: ``PODS``, ``VERTICAL_AUTOSCALERS``, ``CHECKPOINTS`` …
reads
    ``get``, ``list_all``, ``pages``: one object, a small list, a big one page by page.
reflectors
    ``Reflector``: a read-only mapping (namespace, name) → what *project* keeps. ``subscribe``, ``synced``,
    ``age``, ``wait_synced``, ``last_error``, ``poison``, ``counters``, ``run``;
    ``running(*reflectors, timeout=…)`` runs several while a block runs.
writes
    ``patch``, ``update`` (conflict: read again, ask again), ``create``, ``replace``, ``delete``, ``evict``,
    ``resize``.
statuses
    ``write_status``, ``write_conditions`` of a VPA: other writers' conditions stay.
events
    ``Recorder(connection, component=…)``: ``emit(Reference, reason, message)`` returns at once, ``run``,
    ``flush`` at the end.
leases
    ``Election``: ``async with election.held(): …``; ``leading``; ``connection.fence = election.check``;
    ``LeadershipLostError``.
startup
    ``connect`` and ``leading``: the connection and the lease as the services' flags say.
heartbeats
    The admission controller's status lease: ``Heartbeat.run``, ``read``, ``is_alive``.
reviews
    ``Reviews``: whether a bearer token may get a path of ours, by TokenReview and SubjectAccessReview.
workloads
    ``Workloads``: records of the seven well-known kinds, from copies (``reflector``) or asked for;
    ``OwnerKey``, ``controller_of``.
nodes
    ``labels``: a copy of all nodes' labels.
discovery, scales
    ``Discovery``, ``Scales``: all other kinds, asked for and remembered.
owners
    ``Owners.of_pod``, ``Owners.topmost``.
targets
    ``directory(connection, copies=…, rules=…)`` puts these four together; ``Targets.resolve(namespace, ref)``
    → ``Target(key, selector, problem, temporary, note, record)``.
"""
