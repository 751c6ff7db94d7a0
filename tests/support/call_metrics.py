"""What a service has counted of its gRPC calls."""

from triptych.metrics import CallMetrics


def num_ended(metrics: CallMetrics, method: str) -> float:
    return sum(
        sample.value
        for metric in metrics.collect()
        for sample in metric.samples
        if sample.name.endswith("_count") and sample.labels.get("method") == method
    )
