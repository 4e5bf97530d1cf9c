"""The page that Prometheus reads: every node's figures, in the text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from parl_mq.metrics import METRICS, OF_THE_HUB, is_known, metric_of, parted

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "parl_mq_"
RUN_INFO: Final = f"{PREFIX}run_info"
HUB: Final = "hub"
"""Under this node stand the figures that the hub alone knows."""

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node's newest figures, by the metric's key."""

    name: str
    role: str
    figures: Mapping[str, float]


def page(info: Mapping[str, str], run: Mapping[str, float], nodes: list[NodeFigures]) -> str:
    """The page.

    What nodes tell stands under them alone, also while none is there, so that a sum over `node` counts nothing twice;
    what only the hub knows stands under it.

    Args:
        info: labels of the run.
        run: its figures; those that nodes tell are left out.
        nodes: those that are in the run, the hub not among them unless it tells figures of its own process.
    """
    samples = _samples(run, nodes)
    lines = [f"# HELP {RUN_INFO} what is run", f"# TYPE {RUN_INFO} gauge", f"{RUN_INFO}{_labels(info)} 1"]
    for metric in METRICS:
        if found := samples.get(metric.name):
            name = PREFIX + metric.name
            lines += [f"# HELP {name} {metric.help} ({metric.unit})", f"# TYPE {name} {metric.kind}"]
            lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in found]
    return "\n".join(lines) + "\n"


def _samples(run: Mapping[str, float], nodes: list[NodeFigures]) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    """Labels and value of each sample, by the metric's name."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    told = {key for node in nodes if node.name == HUB for key in node.figures}
    own = {key: value for key, value in run.items() if _is_of_the_hub(key) and key not in told}
    for node in [*nodes, NodeFigures(HUB, HUB, own)]:
        for name, label, value in _known(node.figures):
            samples.setdefault(name, []).append(({"node": node.name, "role": node.role, **label}, value))
    return samples


def _is_of_the_hub(key: str) -> bool:
    return is_known(key) and metric_of(key).group in OF_THE_HUB


def _known(figures: Mapping[str, float]) -> Iterator[tuple[str, dict[str, str], float]]:
    for key, value in figures.items():
        if is_known(key):  # a node of another version may tell more
            yield *parted(key), float(value)


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"
