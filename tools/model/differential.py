"""Random sessions, each played to the real nsqd and to gnsqd, and every answer compared.

    PYTHONPATH=tests:tools python -m model.differential --steps=1000000 --seed=1

`--seed=S` plays sessions `S.0`, `S.1` and so on; `--session=S.N` plays one again and shows all its steps. After a
difference the session is played again without some of its steps, as few as still show it.
"""

import argparse
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from kit.daemons import PEERS, fast_directory
from kit.pairs import running_pair
from model.bad_arguments import LIMITS
from model.player import Disagreement, ExplainedDisagreement
from model.session import RandomSession
from model.sides import DaemonSide

STEPS = 200  # of a session
SHOWN = 30  # steps
ENOUGH = 10  # differences
LONG_ENOUGH = 30.0  # seconds, to look for the fewest steps that show a difference
QUICK = 0.3  # seconds; what has not come then does not come, when a difference is looked into

Sides = tuple[DaemonSide, DaemonSide]
Outcome = tuple[int, list[str], Counter[str]]  # steps, differences in words, and explained ones


class Arena:
    """Daemons to play to: one pair with a memory queue and one without, as the session's seed requires."""

    def __init__(self, in_memory: Sides, on_disk: Sides) -> None:
        self._pairs = (in_memory, on_disk)
        self.steps = 0
        self.explained: Counter[str] = Counter()

    def play(self, seed: str, steps: Collection[int] = range(STEPS), patience: float | None = None) -> list[str]:
        """Returns the trace; raises Disagreement."""
        on_disk = random.Random(seed).random() < 0.25
        session = RandomSession(self._pairs[on_disk], seed, on_disk)
        if patience is not None:
            session.patience = patience
        try:
            session.play(steps)
        except ExplainedDisagreement as error:
            self.explained[str(error)] += 1
            session.clean_up()
        except Disagreement as error:
            error.add_note("\n".join((f"the last steps of session {seed}:", *session.trace[-SHOWN:])))
            session.clean_up()
            raise
        self.steps += len(session.trace)
        return session.trace

    def judge(self, seed: str) -> None:
        """Plays a session; a Disagreement has the rest of it without steps that play no part."""
        try:
            self.play(seed)
        except Disagreement as error:
            steps = self._fewest(seed)
            if steps is None:
                error.add_note("played again it does not show")
            else:
                error.add_note(f"shows with --session={seed} --only={','.join(map(str, steps))}")
            raise

    def _fewest(self, seed: str) -> list[int] | None:
        """Steps that show a difference; None if not even all of them do, this time."""

        def shows(steps: list[int]) -> bool:
            try:
                self.play(seed, steps, QUICK)
            except Disagreement:
                return True
            return False

        steps = list(range(STEPS))
        if not shows(steps):
            return None
        end = time.monotonic() + LONG_ENOUGH
        size = STEPS // 2
        while size:
            first = 0
            while first < len(steps) and time.monotonic() < end:
                fewer = steps[:first] + steps[first + size :]
                if shows(fewer):
                    steps = fewer
                else:
                    first += size
            size //= 2
        return steps


@contextmanager
def arena(directory: Path, nsqd: Path) -> Iterator[Arena]:
    """Daemons with data paths below `directory`; the real one is `nsqd`."""
    with ExitStack() as stack:
        pairs: list[Sides] = []
        for name, *flags in (("memory",), ("disk", "--mem-queue-size=0")):
            pair = stack.enter_context(running_pair(directory / name, nsqd, *LIMITS, *flags))
            sides = (DaemonSide("gnsqd", pair.ours), DaemonSide("nsqd", pair.real))
            for side in sides:
                stack.enter_context(closing(side))
                assert side.web.ask("PUT /config/log_level", b"error").status == 200
            pairs.append(sides)
        yield Arena(*pairs)


def play(nsqd: Path, seed: int, steps: int, first: int = 0, stride: int = 1, enough: int = 1) -> Outcome:
    """Plays that many steps, of the sessions `first`, `first + stride` and so on, or that many differences."""
    differences = []
    with (
        tempfile.TemporaryDirectory(prefix="gnsqd-differential-", dir=fast_directory()) as directory,
        arena(Path(directory), nsqd) as ring,
    ):
        for number in itertools.count(first, stride):
            try:
                ring.judge(f"{seed}.{number}")
            except Disagreement as error:
                differences.append("\n".join((str(error), *error.__notes__)))
            if ring.steps >= steps or len(differences) >= enough:
                return ring.steps, differences, ring.explained
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(prog="model.differential", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="pairs of daemons at a time")
    parser.add_argument("--session", help="play this one alone")
    parser.add_argument("--only", help="and of it these steps")
    arguments = parser.parse_args()
    nsqd = PEERS / "nsqd"
    if arguments.session:
        only = map(int, arguments.only.split(",")) if arguments.only else range(STEPS)
        with tempfile.TemporaryDirectory() as directory, arena(Path(directory), nsqd) as ring:
            sys.stdout.writelines(f"{line}\n" for line in ring.play(arguments.session, list(only)))
        return 0
    begin = time.monotonic()
    jobs = arguments.jobs
    with ProcessPoolExecutor(jobs) as pool:
        share = -(-arguments.steps // jobs)
        futures = [pool.submit(play, nsqd, arguments.seed, share, job, jobs, ENOUGH) for job in range(jobs)]
        counts, found, reasons = zip(*[future.result() for future in futures], strict=True)
    seconds = time.monotonic() - begin
    steps, differences = sum(counts), [text for texts in found for text in texts]
    lines = [f"{text}\n" for text in differences]
    lines.append(
        f"seed {arguments.seed}: {steps} steps, {steps / seconds:.0f} a second, {len(differences)} unexplained"
    )
    explained = sum(reasons, Counter[str]())
    lines += [f"{count} explained: {reason}" for reason, count in explained.items()]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
