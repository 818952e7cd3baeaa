"""Answers in several turns, behind the Protocol of an engine: an environment answers the model between its turns.

Each turn is a request of its own to the engine below. Its prompt is everything before it, so the engine's prefix cache
has computed all but what the environment said. While one trajectory waits for its environment others are decoded.
Nothing that was sampled is decoded and encoded again. Writes nothing; unfinished trajectories go to a store as bytes.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from oapl_core.environments.making import maker, trajectories_at_once
from oapl_core.environments.protocol import Observation
from oapl_core.environments.stepping import Playing, Stepped, Steps, ended
from oapl_core.environments.unfinished import Unfinished
from oapl_core.environments.wording import Wording
from oapl_core.model_files.model_folder import end_token_ids, load_tokenizer, parameters
from oapl_core.progress import say
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.rollouts.stopping import tokens_and_texts
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.problems import PromptConfig
from oapl_core.tables import PROBLEMS, read_table
from oapl_core.turns import FAILED
from oapl_core.turns.rows import prompt_hash, record


class TurnStore(Protocol):
    """Store that keeps unfinished trajectories."""

    def left(self, key: str) -> bytes | None:
        """Return the state that an earlier process left of a trajectory."""
        ...

    def keep(self, key: str, state: bytes) -> None:
        """Keep a trajectory after a finished turn."""
        ...


class TurnSampler:
    """A sampler whose answers have several turns. Use as a context manager, inside of that of the engine."""

    def __init__(
        self,
        sampler: Sampler,
        config: EnvironmentConfig,
        steps: Steps,
        wording: Wording,
        problems: Mapping[str, Mapping[str, Any]],
        most_open: int,
        is_judge: bool,
        store: TurnStore | None = None,
        again: str = "",
    ) -> None:
        """Take ``sampler``, the started engine; ``problems`` are rows by id, ``most_open`` bounds what is in flight;
        ``again``: options of `oapl run` that sample anew."""
        self._sampler, self._config, self._steps, self._wording = sampler, config, steps, wording
        self._problems, self._most, self._is_judge, self._store = problems, most_open, is_judge, store
        self._again = again
        self.name, self.logprobs_mode, self.dtype = sampler.name, sampler.logprobs_mode, sampler.dtype
        self.startup_s = sampler.startup_s
        self._open: dict[str, Unfinished] = {}
        self._ready = deque[Unfinished]()
        """Trajectories whose next turn the engine is to be asked for."""
        self._decoding: dict[str, str] = {}
        """Keys of requests that the engine has, and whose they are."""
        self._over = list[SampledAnswer]()
        self._source: Iterator[Request | None] = iter(())
        self._is_read = True
        self.turns = self.calls = self.errors = 0
        """Counted so far: turns, calls, and trajectories whose environment failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Give up what is unfinished: every environment is closed."""
        running = self._steps.close()
        for key, one in self._open.items():
            if key not in running:  # nobody may touch what still runs
                ended(one.playing)

    def load(self, model_dir: Path) -> None:
        """Continue with other weights."""
        self._sampler.load(model_dir)

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        """Yield each answer when its last turn is finished.

        Raises:
            StageFailed: environments hang, as many as there are workers.
        """
        assert not self._open, "answers are missing of an earlier call"
        self._source, self._is_read = iter(requests), False
        while True:
            for answer in self._sampler.sample(self._asked(), with_logprobs):
                self._take(answer)
                yield from self._taken()
            self._observe(0.0)
            yield from self._taken()
            if self._is_read and not self._open:
                return
            if not self._ready:  # everything waits for an environment, and the engine for us
                self._observe(None)

    def summary(self) -> str:
        """Return the counts of turns and calls, in a few words."""
        failed = f", {self.errors:,} without a verdict since the environment failed" if self.errors else ""
        return f"{self.turns:,} turns, {self.calls:,} calls{failed}"

    def _asked(self) -> Iterator[Request | None]:
        """Yield requests for the engine: turns that are ready before new trajectories, so that begun ones end."""
        while True:
            self._observe(0.0)
            if not self._ready and not self._is_read and len(self._open) < self._most:
                self._begin(next(self._source, None))
                continue
            if self._ready:
                one = self._ready.popleft()
                request = one.next_turn(self._config.turn_tokens)
                self._decoding[request.key] = one.request.key
                yield request
            elif self._decoding:
                yield None
            else:
                return

    def _begin(self, request: Request | None) -> None:
        if request is None:
            self._is_read = True
            return
        one = Unfinished(request, Playing(self._problems[request.problem_id], request.seed))
        if self._store and (state := self._store.left(request.key)):
            one.restore(state)
        self._open[request.key] = one
        if one.is_asking:  # killed in a tool: what the model said is not sampled again
            self._ask(one)
        else:
            self._ready.append(one)

    def _take(self, answer: SampledAnswer) -> None:
        """Take a finished turn of the model."""
        one = self._open[self._decoding.pop(answer.request.key)]
        one.starts.append(len(one.response_ids))
        if answer.prompt_ids is not None:
            one.hashes.append(prompt_hash(answer.prompt_ids))
        one.response_ids += answer.response_ids
        one.logprobs += answer.logprobs
        one.mask += [True] * len(answer.response_ids)
        one.text = answer.text
        self.turns += 1
        if answer.finish_reason != "stop":  # cut: what it says is no action
            self._finish(one, "length")
        else:
            self._keep(one, is_asking=True)
            self._ask(one)

    def _ask(self, one: Unfinished) -> None:
        # of each turn's own prompt: what an environment says may be followed by another
        is_thinking = self._wording.opens_thinking([*one.request.prompt_ids, *one.response_ids[: one.starts[-1]]])
        self._steps.submit(one.request.key, one.playing, one.text, len(one.starts) - 1, is_thinking)

    def _keep(self, one: Unfinished, is_asking: bool) -> None:
        one.is_asking = is_asking
        if self._store:
            self._store.keep(one.request.key, one.state())

    def _observe(self, wait_s: float | None) -> None:
        """Take what environments have answered."""
        if len(self._open) == len(self._ready) + len(self._decoding):
            return  # none is asked
        for found in self._steps.ended(wait_s):
            one = self._open[found.key]
            if found.observation is None:
                self._fail(one, found)
            else:
                self._answered(one, found.observation)

    def _answered(self, one: Unfinished, observation: Observation) -> None:
        turn = len(one.starts) - 1
        for result in observation.results:
            call = {"turn": turn, "name": result.call.name, "arguments": result.call.written, "result": result.text}
            one.calls.append({**call, "is_error": result.is_error, "seconds": result.seconds})
        self.calls += len(observation.results)
        one.rewards.append(observation.reward or 0.0)
        if observation.is_done:
            self._finish(one, "stop")
            return
        ids = self._wording.ids(observation, one.response_ids[-1])
        is_late = turn + 1 >= self._config.max_turns or one.wall_s > self._config.wall_s
        if is_late or len(ids) >= one.left:  # at least one token must be left for the model
            self._finish(one, "length")
            return
        one.response_ids += ids
        # a sampler that was asked for no log-probs gives none, and then nobody wants those of the environment
        one.logprobs += [0.0] * len(ids) if one.logprobs else []
        one.mask += [False] * len(ids)
        self._keep(one, is_asking=False)
        self._ready.append(one)

    def _fail(self, one: Unfinished, found: Stepped) -> None:
        self.errors += 1
        if self.errors == 1:
            advice = self._config.advice(self._again)
            say(f"environment {self._config.function} failed on {one.request.key}: {found.reason}; {advice}")
        about = {"turn": len(one.starts) - 1, "name": self._config.function, "arguments": "{}", "result": found.reason}
        one.calls.append({**about, "is_error": True, "seconds": found.seconds})
        if found.hangs:  # its thread closes it, as nobody may touch what still runs
            one.playing = Playing(one.playing.problem, one.playing.seed)
        self._finish(one, FAILED)

    def _finish(self, one: Unfinished, reason: str) -> None:
        del self._open[one.request.key]
        if left := ended(one.playing):
            say(f"environment {self._config.function}, {one.request.key}: was not closed ({left})")
        turns = len(one.starts)
        rewards = [*one.rewards, *[0.0] * turns][:turns] if self._is_judge else None
        hashes = one.hashes if len(one.hashes) == turns else None
        told = {"prompt_hashes": hashes, "tool_calls": one.calls, "turn_rewards": rewards}
        columns = record(one.mask, one.starts, **told, environment=self._config.function)
        answer = SampledAnswer(one.request, one.response_ids, one.logprobs, reason, one.text)
        self._over.append(replace(answer, row=columns, sampled=sum(one.mask)))

    def _taken(self) -> Iterator[SampledAnswer]:
        while self._over:
            yield self._over.pop(0)


def turn_sampler(
    sampler: Sampler,
    config: EnvironmentConfig,
    prompts: PromptConfig,
    engine: EngineConfig,
    stop: Sequence[str],
    model: Path,
    problems: Path,
    store: TurnStore | None = None,
    again: str = "",
) -> TurnSampler:
    """Join ``sampler``, which has the weights of ``model``, with the environment of ``config`` between its turns.

    Args:
        sampler: the started engine, or servers.
        config: the environment.
        prompts: how prompts are made, so that what comes back is worded alike.
        engine: how many sequences are decoded at once.
        stop: texts that end a turn.
        model: the folder of the tokenizer.
        problems: tables.PROBLEMS.
        store: where unfinished trajectories are kept; None: nowhere.
        again: options of `oapl run` that sample anew, for the advice on an environment that fails.

    Raises:
        ConfigError: the environment cannot be made, or so many at once do not fit on this machine.
        DataError: the chat template cannot word what comes back.
    """
    make = maker(config)
    tried = make()
    places = engine.at_once(parameters(model))
    is_judge, most = tried.is_judge, trajectories_at_once(config, tried, places, engine.replicas)
    tried.close()
    tokenizer = load_tokenizer(model)
    ends = [*end_token_ids(model), *tokens_and_texts(tokenizer, stop)[0]]
    wording = Wording(tokenizer, ends, config.observation_characters, prompts.chat, prompts.thinking)
    columns = [name for name, _ in PROBLEMS if name != "tests"]  # the largest, and environments are not to see them
    rows = {row["problem_id"]: row for row in read_table(problems, PROBLEMS, columns).to_pylist()}
    return TurnSampler(sampler, config, Steps(config, make), wording, rows, most, is_judge, store, again)
