"""Metrics of a server for monitoring: Prometheus text over HTTP, for this machine only."""

from collections.abc import Callable, Iterator
from typing import Any

from mrlm.core.errors import ConfigError

BUCKETS: tuple[float, ...] = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60
)  # fmt: skip
"""Upper bounds of the latency histogram, in seconds."""
Readings = Callable[[], dict[str, float]]


class Metrics:
    """Metrics of a server; none are recorded unless they are for Prometheus. Raises `ConfigError`:
    the library of Prometheus is not installed."""

    def __init__(self, recorded: bool) -> None:
        self._library: Any = None
        self._http: Any = None
        if not recorded:
            return
        try:
            import prometheus_client as library
        except ImportError as error:
            raise ConfigError(
                "--metrics-port needs the library prometheus-client: pip install 'mrlm[serve]'"
            ) from error
        self._library = library
        self._registry = registry = library.CollectorRegistry()
        library.ProcessCollector(registry=registry)
        self._seconds: Any = library.Histogram(
            "mrlm_call_seconds", "How long they took.", ["call"], registry=registry, buckets=BUCKETS
        )
        self._counters: dict[str, Any] = {
            name: library.Counter(f"mrlm_{name}", text, labels, registry=registry)
            for name, text, labels in (
                ("calls", "Calls that were answered.", ["call", "result"]),
                ("leases_expired", "Sessions whose clients were gone.", ()),
                ("denied", "Calls without the right token.", ()),
            )
        }

    def called(self, call: str, result: str, seconds: float) -> None:
        """Count an answered call of a kind; the result is `ok`, or the kind of the failure."""
        if self._library is not None:
            self._counters["calls"].labels(call, result).inc()
            self._seconds.labels(call).observe(seconds)

    def count(self, name: str) -> None:
        """Count an expired session (`leases_expired`), or a call without a token (`denied`)."""
        if self._library is not None:
            self._counters[name].inc()

    def serve(self, port: int, readings: Readings) -> int:
        """Serve `http://127.0.0.1:PORT/metrics` (0 takes a free port); returns the port. `readings`
        has the current values of the server, by the names in `WORDS` and `restarts`."""
        self._readings = readings
        self._registry.register(self)
        try:
            self._http, _ = self._library.start_http_server(
                port, addr="127.0.0.1", registry=self._registry
            )
        except OSError as error:
            raise ConfigError(f"--metrics-port {port}: {error.strerror}") from error
        return self._http.server_port

    def collect(self) -> Iterator[Any]:
        """The current values, which Prometheus requests."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = self._readings()
        for name, words in WORDS.items():
            yield GaugeMetricFamily(f"mrlm_{name}", words, value=now[name])
        text = "Worker processes that ended and were started again."
        yield CounterMetricFamily("mrlm_worker_restarts", text, value=now["restarts"])

    def close(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()


WORDS: dict[str, str] = {
    "sessions": "Sessions that are open.",
    "calls_running": "Calls under way.",
    "workers": "Worker processes that are ready.",
    "draining": "1 while the server takes no new sessions.",
}
