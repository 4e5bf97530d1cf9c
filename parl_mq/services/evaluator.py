"""An evaluator: plays greedy episodes with one version of the weights after another and reports the returns."""

from __future__ import annotations

import asyncio
import logging
import time

from parl_mq.algorithms.base import Policy
from parl_mq.config.models import EvaluationConfig
from parl_mq.errors import EXIT_OK, EnvironmentFault
from parl_mq.learn.threads import prepare_training_thread
from parl_mq.model.snapshot import WeightsSnapshot
from parl_mq.model.weights import unpack
from parl_mq.rollout.building import build_evaluator
from parl_mq.rollout.evaluation import Evaluation, Evaluator
from parl_mq.services.hub_link import HubLink
from parl_mq.services.joining import joined, run_config
from parl_mq.services.network import network_of
from parl_mq.services.runtime import NodeOptions, StopSignal, WorkThread
from parl_mq.services.weights_client import WeightsClient
from parl_mq.services.weights_exchange import most_bytes_of_weights
from parl_mq.wire.messages import EvaluationFinished

log = logging.getLogger("parl_mq")


async def serve(options: NodeOptions, stop: StopSignal) -> int:
    """Runs an evaluator until it is told to stop."""
    network, work = network_of(options), WorkThread("evaluation")
    try:
        async with joined(network, options, "evaluator", stop, work=work) as (link, welcome):
            config = run_config(welcome, options)
            await work(prepare_training_thread, config.actor.threads)
            evaluator, policy = await work(build_evaluator, config)
            most_bytes = most_bytes_of_weights(config, evaluator.spec.extended(config.algorithm.extra_columns()))
            weights = WeightsClient(network.connect(welcome.weights_endpoint), most_bytes)
            link.status.links.append(weights)
            judge = Judge(link, work, stop, evaluator, policy)
            async with asyncio.TaskGroup() as tasks:
                fetching = tasks.create_task(weights.run())
                await judge.run(weights, config.evaluation)
                fetching.cancel()
            try:
                await work(evaluator.close)
            except EnvironmentFault as fault:
                log.warning("at the end: %s", fault)
        return EXIT_OK
    finally:
        stop.set("the service has ended")  # an evaluation under way ends too, if it was not the stop that ended it
        work.close()
        network.close()


class Judge:
    """The evaluator's work loop."""

    def __init__(self, link: HubLink, work: WorkThread, stop: StopSignal, evaluator: Evaluator, policy: Policy) -> None:
        self._link = link
        self._work = work
        self._stop = stop
        self._evaluator = evaluator
        self._policy = policy

    async def run(self, weights: WeightsClient, config: EvaluationConfig) -> None:
        """Evaluates one version for each `every_updates` updates at most, until the stop."""
        due = config.every_updates
        while True:
            self._link.status.waits(f"weights with {due:,} updates")
            snapshot = await self._stop.wait_for(weights.newer(min_updates=due, keep=True))
            if snapshot is None or not await self._judge(snapshot):
                return
            due = snapshot.updates + config.every_updates

    async def _judge(self, snapshot: WeightsSnapshot) -> bool:
        """Whether the evaluation went through to its end."""
        self._link.status.works("evaluating")
        started = time.monotonic()
        evaluation = await self._work(self._play, snapshot)
        if evaluation is None:
            return False
        report = EvaluationFinished(
            version=tuple(snapshot.version),
            updates=snapshot.updates,
            returns=evaluation.returns.tolist(),
            lengths=evaluation.lengths.tolist(),
            duration_s=time.monotonic() - started,
        )
        self._link.deliver(report)
        return True

    def _play(self, snapshot: WeightsSnapshot) -> Evaluation | None:
        self._policy.load_weights(unpack(snapshot.payload))
        return self._evaluator.evaluate(self._policy, self._should_stop)

    def _should_stop(self) -> bool:
        """Asked before each step: episodes may be long, and are no sign that the work hangs."""
        self._work.gets_on()
        return self._stop.is_set()
