"""The one door to Kubernetes: connection, copies of collections, writes, events, leases, owners and targets.

Async and typed; nothing above this package imports ``kubernetes``, and nothing here decides anything about pods.
One event loop per process; each name below is used by module (``from vpa.cluster import reflectors, writes``).

``connection.Connection``   ``await Connection.open(kubeconfig=…, servers=…, qps=…, burst=…, user_agent=…)``, an async
                            context manager. ``request`` (bytes in, bytes out), ``stream`` (watches), ``fence``.
``errors``                  the hierarchy: ``ClusterError`` > ``ConfigurationError``, ``CacheNotSyncedError``,
                            ``RequestError`` > ``Unreachable``, ``Unreadable``, ``StatusError`` > ``NotFound``,
                            ``Conflict`` (> ``AlreadyExists``), ``Forbidden``, ``Unauthorized``, ``Gone``, ``Invalid``,
                            ``TooManyRequests``, ``BadRequest``, ``ServerError``; with causes and ``retry_after``.
``resources``               ``Resource(group, version, plural, kind, namespaced)`` and the constants (``PODS`` …).
``reads``                   ``get``, ``list_all``, ``pages``: one object, a small list, a big one page by page.
``reflectors.Reflector``    a read-only mapping ``(namespace, name) → what project keeps``; ``subscribe``, ``synced``,
                            ``age``, ``wait_synced``, ``last_error``, ``poison``, ``counters``, ``run``.
                            ``async with running(*reflectors, timeout=…)`` runs several.
``writes``                  ``patch``, ``update`` (conflict → read again → ask again), ``create``, ``replace``,
                            ``delete``, ``evict``, ``resize``.
``statuses``                ``write_status``, ``write_conditions`` of a VPA: only the owned condition types change.
"""
