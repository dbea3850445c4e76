"""One life of a collector among crashes, drawn from a seed; at its end every sum must be exact."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from crash_analyst import Asking
from crash_book import HONEST, OTHER_BYTES, SECOND_ID, Book, Broken, Sent, make_report
from crash_keeper import Ending, Keeper, clock
from crash_line import AGAIN_S, Line
from crash_places import Furniture, Place
from crash_process import Fate, Step
from demur_client.enrolment import enrol
from demur_proto.errors import AccessError, ConnectionLost
from demur_proto.queries import Feature, Linear
from demur_proto.release import Release
from demur_proto.round import round_of
from demur_proto.study import design_study
from demur_proto.transport.credentials import DeviceCredential
from demur_proto.v1 import analyst_pb2
from demur_proto.wire.definition import PROTOCOL_VERSION, define_round, define_study
from demur_proto.wire.hmacs import prepare_key
from demur_server.admin.overview import round_lines
from demur_server.admin.verifying import verify
from demur_server.grpc.access import device_secrets

STORY_S = 30.0  #: by then every story is over, or something hangs
PAUSE_S = 0.004  #: the longest that a client thinks between two streams
CONFLICTING = 0.12  #: how likely a device also sends other bytes, and how likely a second id
VISITING = 3  #: devices that bring their reports themselves; those that enrol among them
STUDY = define_study(
    design_study(
        name="crashes",
        epsilon=1.0,
        delta=1e-6,
        answers=3,
        minimum_cohort=2,
        grid_exponent=-7,
        maximum_dimension=64,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What happened in a story."""

    ended: Counter[str]  #: processes, by what they did then
    faults: Counter[str]  #: on the lines
    conflicts: int  #: that were told
    counted: int  #: reports, over all rounds


async def tell_story(place: Place, seed: int, *, bug: str | None = None) -> Told:
    """Tell one.

    Args:
        place: where the collector keeps everything.
        seed: what everything that is chosen follows from. When exactly a process ends also depends
            on the machine, so a failure may take a few repetitions to come back.
        bug: one of BUGS to plant.

    Raises:
        Broken: the collector has broken a promise; with what happened until then as a note.
    """
    with place.emptied() as folder:
        story = Story(place, folder, seed, bug)
        try:
            with anyio.fail_after(STORY_S):
                return await story.tell()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised
            cause = _cause(error)
            cause.add_note(story.so_far())
            raise cause from None


def _cause(error: BaseException) -> BaseException:
    """Of a group, the first promise that was broken, else the first error."""
    while isinstance(error, BaseExceptionGroup):
        broken, _ = error.split(Broken)
        error = (broken or error).exceptions[0]
    return error


class Story:
    """A study of two rounds, and everybody who takes part in it."""

    def __init__(self, place: Place, folder: Path, seed: int, bug: str | None) -> None:
        self.place = place
        self.folder = folder
        self.seed = seed
        self.rng = np.random.default_rng([seed, place.number])
        self.furniture: Furniture = place.furniture
        self.shards = 2 if place.shareable and self.rng.random() < 0.35 else 1
        self.blank = self.shards == 1 and self.rng.random() < place.blank_rate
        if self.blank:
            place.nothing()
        self.people = int(self.rng.integers(8, 17))
        self.happened: Counter[str] = Counter()
        self.notes: list[str] = []
        self._now = clock()
        self.disturbed = False
        self.doing = "counting"  # while a process ends
        self.keepers = [self._keeper(shard, bug) for shard in range(self.shards)]
        self.devices: list[DeviceCredential] = []
        self.books: list[Book] = []
        self.reports: dict[int, list[Sent]] = {}  # by number of their round
        self.releases: dict[int, bytes] = {}  # likewise

    def note(self, text: str) -> None:
        """For whoever has to understand a failure."""
        self.notes.append(f"{self._now()}  {text}")

    def so_far(self) -> str:
        """The notes, and what the collectors logged last."""
        logs = [f"{log.name}:\n{log.read_text()[-3000:]}" for log in self._logged()]
        return "\n".join([f"seed {self.seed} on {self.place.kind}", *self.notes, *logs])

    async def tell(self) -> Told:
        """From the first start to the last check."""
        try:
            async with anyio.create_task_group() as collectors:
                for keeper in self.keepers:
                    collectors.start_soon(keeper.keep)
                await self._begin()
                await self._ask_and_answer()
                await self._end()
                collectors.cancel_scope.cancel()
        finally:
            for keeper in self.keepers:
                await keeper.hang_up()
        self._check_logs()
        return Told(
            ended=sum((each.ended for each in self.keepers), Counter()),
            faults=self.happened,
            conflicts=sum(book.conflicts for book in self.books),
            counted=sum(len(book.counted) for book in self.books),
        )

    # ---- the three acts ----------------------------------------------------------------------

    async def _begin(self) -> None:
        """Whoever takes part gets to know the collector."""
        if self.blank:
            await self.keepers[0].life()
            self.furniture = self.place.furnish(self.folder / "0")
            self.keepers[0].kill()  # the next one knows the gateway from the start
        await self._ask(
            "CreateStudy", protocol_version=PROTOCOL_VERSION, definition=STUDY.definition
        )
        ids = [bytes([i % self.shards]) + self.rng.bytes(15) for i in range(self.people)]
        known = device_secrets(prepare_key(self.furniture.master), ids)
        self.devices = [
            DeviceCredential(device_id=device_id, secret=secret)
            for device_id, secret in zip(ids, known, strict=True)
        ]
        async with anyio.create_task_group() as tasks:
            for number, token in enumerate(self.furniture.tokens):
                line = self._line(0, self.furniture.gateway)
                tasks.start_soon(self._enrol, number, token, line)

    async def _ask_and_answer(self) -> None:
        """Two rounds are opened, answered and closed; all the while processes end."""
        early = self.rng.random() < 0.6
        async with anyio.create_task_group() as tasks:
            first = await self._open(1)
            self._strike(0.8, statements=30, files=4, moment_s=0.03, tasks=tasks)
            wait_s, chance = self.rng.uniform(0, 0.06), self.rng.random()
            if self.rng.random() < self.place.trouble_rate:
                tasks.start_soon(self._disturb, wait_s, chance)
            self._answer(first, tasks)
            await self._progress(first, self.rng.uniform(0.2, 0.6))
            self._strike(0.4, statements=20, files=8, moment_s=0.006, tasks=tasks)
            second = await self._open(2)
            self._answer(second, tasks)
            if early:
                await self._progress(first, self.rng.uniform(0.2, 1.0))
                await self._close(first, tasks, exact=False)
        async with anyio.create_task_group() as tasks:
            for book in self.books:
                if not book.shut:
                    await self._check_count(book)
                    await self._close(book, tasks, exact=True)

    async def _end(self) -> None:
        """After another kill, what was published is there, and nothing else is taken."""
        self.doing = "all done"
        for keeper in self.keepers:
            keeper.kill()
        for book in self.books:
            for shard in range(self.shards):
                for _ in range(2):
                    again = await self._ask("GetRelease", shard=shard, round_hash=book.asked.hash)
                    if again != self.releases[book.asked.value.number]:
                        raise Broken(f"the release of round {book.asked.value.number} has changed")
        async with anyio.create_task_group() as tasks:
            for book in self.books:
                self._answer(book, tasks)
        await self._check_enrolment()
        await self._check_store()

    # ---- who takes part ----------------------------------------------------------------------

    def _keeper(self, shard: int, bug: str | None) -> Keeper:
        folder = self.folder / str(shard)
        if not self.blank:
            self.place.move_in(folder)
        endings = [self._ending() for _ in range(int(self.rng.integers(0, 4)))]
        return Keeper(
            config=self.place.config(folder, shard=shard, shards=self.shards),
            log=self.folder / f"{shard}.log",
            endings=endings,
            bug=bug,
            note=self.note,
            forgiving=lambda: self.disturbed,
            doing=lambda: self.doing,
        )

    def _ending(self) -> Ending:
        if self.rng.random() < 0.3:
            return float(self.rng.uniform(0.0, 0.06))
        return self._fate(statements=60, files=40)

    def _fate(self, *, statements: int, files: int) -> Fate:
        step = list(Step)[int(self.rng.integers(len(Step)))]
        most = files if step is Step.FILE else statements
        return Fate(step=step, n=int(self.rng.integers(1, most + 1)))

    def _line(self, shard: int, sender: Any) -> Line:
        keeper = self.keepers[shard]
        return Line(
            study=STUDY,
            keeper=keeper,
            others=[each for each in self.keepers if each is not keeper],
            sender=sender,
            rng=self.rng.spawn(1)[0],
            faults=int(self.rng.integers(0, 8)),
            happened=self.happened,
        )

    async def _enrol(self, number: int, token: bytes, line: Line) -> None:
        nonce = line.rng.bytes(16)
        device = await line.enrol(token, nonce)
        if await line.enrol(token, nonce) != device:
            raise Broken("the same token and nonce made another device")
        self.devices[number] = device

    def _answer(self, book: Book, tasks: Any) -> None:
        """Everybody sends what there is to send, each at their own pace."""
        reports = self._reports(book)
        for shard in range(self.shards):
            mine = [each for each in reports if each.device.device_id[0] % self.shards == shard]
            visitors = {each.place for each in mine if each.place < VISITING}
            for place in sorted(visitors):
                sent = [each for each in mine if each.place == place]
                line = self._line(shard, sent[0].device)
                tasks.start_soon(self._settle, line, book, sent)
            framed = [each for each in mine if each.place not in visitors]
            first = [each for each in framed if self.rng.random() < 0.6]
            second = [each for each in framed if each not in first or self.rng.random() < 0.2]
            for sent in (first, second):
                line = self._line(shard, self.furniture.gateway)
                tasks.start_soon(self._settle, line, book, sent)

    async def _settle(self, line: Line, book: Book, reports: list[Sent]) -> None:
        await line.settle(book, reports, pause_s=0.0 if book.shut else PAUSE_S)

    def _reports(self, book: Book) -> list[Sent]:
        """One of each device, and now and then one that conflicts with it; again, the same."""
        number = book.asked.value.number
        if number not in self.reports:
            self.reports[number] = [
                make_report(book.asked, device, place=place, word=word)
                for place, device in enumerate(self.devices)
                for word in (HONEST, OTHER_BYTES, SECOND_ID)
                if word == HONEST or self.rng.random() < CONFLICTING
            ]
        return self.reports[number]

    # ---- what the analyst does ---------------------------------------------------------------

    async def _open(self, number: int) -> Book:
        asked = define_round(
            round_of(
                STUDY,
                Linear([Feature(name="x")], dimension=self.people, on_grid=True),
                number=number,
            )
        )
        self.doing = "opening"
        await self._ask("OpenRound", definition=asked.definition)
        self.doing = "counting"
        book = Book(asked, self.people)
        self.books.append(book)
        return book

    async def _close(self, book: Book, tasks: Any, *, exact: bool) -> None:
        book.closing = True
        number = book.asked.value.number
        self._strike(0.7, statements=20, files=8, moment_s=0.006, tasks=tasks)
        self.note(f"round {number} is to close")
        self.doing = "closing"
        published = await self._ask("CloseRound", round_hash=book.asked.hash)
        self.doing = "counting"
        book.shut = True
        self.note(f"round {number} is closed")
        self.releases[number] = published
        release = Release.of(analyst_pb2.CloseRoundResponse.FromString(published).release)
        book.check(release, exact=exact)

    async def _check_count(self, book: Book) -> None:
        answer = await self._ask("GetRound", round_hash=book.asked.hash)
        seen = analyst_pb2.GetRoundResponse.FromString(answer)
        if seen.closed or seen.reports != len(book.counted):
            raise Broken(f"{len(book.counted)} reports were counted, and it says {seen}")

    async def _progress(self, book: Book, part: float) -> None:
        """Wait until so many devices know that they counted."""
        while len(book.counted) < max(3, part * self.people):  # noqa: ASYNC110  nobody waits long
            await anyio.sleep(0.001)

    async def _ask(self, method: str, **how: Any) -> bytes:
        asking = Asking(self.keepers, self.rng.spawn(1)[0], self.furniture.analyst)
        return await asking.ask(method, **how)

    # ---- what befalls the collectors ---------------------------------------------------------

    def _strike(
        self, rate: float, *, statements: int, files: int, moment_s: float, tasks: Any
    ) -> None:
        """Let a collector end soon, or not."""
        keeper = self.keepers[int(self.rng.integers(self.shards))]
        by_itself, wait_s = self.rng.random() < 0.7, self.rng.uniform(0, moment_s)
        fate = self._fate(statements=statements, files=files)
        if self.rng.random() >= rate:
            return
        if by_itself:
            keeper.strike(fate)
        else:
            tasks.start_soon(self._kill_after, keeper, wait_s)

    async def _kill_after(self, keeper: Keeper, wait_s: float) -> None:
        await anyio.sleep(wait_s)
        self.note("a kill from outside")
        keeper.kill()

    async def _disturb(self, wait_s: float, chance: float) -> None:
        """Let the database fail."""
        await anyio.sleep(wait_s)
        self.disturbed = True
        happened = await anyio.to_thread.run_sync(self.place.disturb, chance)
        self.happened[happened] += 1
        self.note(happened)

    # ---- what must hold in the end -----------------------------------------------------------

    async def _check_enrolment(self) -> None:
        """A token works once."""
        while True:
            life = await self.keepers[0].life()
            try:
                await enrol(life.devices, self.furniture.tokens[0], nonce=bytes(16))
            except AccessError:
                return
            except ConnectionLost:
                await anyio.sleep(AGAIN_S)
                continue
            raise Broken("a token worked twice")

    async def _check_store(self) -> None:
        """The store holds together, and keeps nothing that tells reports apart."""
        with self.place.door(self.folder / "0") as door, door.looking() as sql:
            found = verify(sql, keys_folder=None)
            lines = round_lines(sql)
        if found.problems:
            raise Broken("; ".join(found.problems))
        for line, book in zip(lines, self.books, strict=True):
            if line.state != "released" or line.conflicts < book.conflicts:
                raise Broken(f"{book.conflicts} conflicts were told, and there is {line}")
        folders = [self.folder / str(shard) / "keys/rounds" for shard in range(self.shards)]
        with anyio.fail_after(5):
            while any(list(folder.glob("*")) for folder in folders):  # noqa: ASYNC110  files
                await anyio.sleep(AGAIN_S)

    def _check_logs(self) -> None:
        for log in self._logged():
            text = log.read_text()
            if "Traceback" in text or "a bug ended a call" in text:
                raise Broken(f"a bug in the log {log.name}")

    def _logged(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))
