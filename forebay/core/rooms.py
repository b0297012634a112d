"""The rooms that a planning loop walks through."""

from dataclasses import dataclass

from forebay.core.actions import Actions
from forebay.core.admission import Admission
from forebay.core.frames import Frames
from forebay.core.kv import KvSpace
from forebay.core.limits import Limits
from forebay.core.loads import Loads
from forebay.core.order import build_queues
from forebay.core.outlook import Outlook, Prospects
from forebay.core.policies import StartRule
from forebay.core.pressure import Pressure
from forebay.core.queues import Queues
from forebay.core.reserve import ReserveToLimit
from forebay.core.throttle import Throttle
from forebay.core.token_ratio import TokenRatio
from forebay.core.victims import Victims


@dataclass(slots=True, frozen=True)
class Rooms:
    """Each answers one question; `actions` alone changes the world."""

    limits: Limits
    kv: KvSpace
    queues: Queues
    frames: Frames
    victims: Victims
    outlook: Prospects
    admission: Admission
    actions: Actions
    pressure: Pressure
    loads: Loads
    throttle: Throttle

    @classmethod
    def build(cls, limits: Limits) -> "Rooms":
        """All rooms of one scheduler."""
        kv = KvSpace(limits)
        queues = build_queues(limits)
        throttle = Throttle()
        frames = Frames(limits.steps_in_flight)
        outlook = _build_prospects(limits, kv, queues, throttle)
        victims = Victims(limits, kv)
        return cls(
            limits=limits,
            kv=kv,
            queues=queues,
            frames=frames,
            victims=victims,
            outlook=outlook,
            admission=Admission(limits, kv, queues, outlook),
            actions=Actions(kv, queues, frames, victims),
            pressure=Pressure(limits.pressure),
            loads=Loads(kv, queues),
            throttle=throttle,
        )


def _build_prospects(limits: Limits, kv: KvSpace, queues: Queues, throttle: Throttle) -> Prospects:
    match limits.rules.start:
        case StartRule.OUTLOOK:
            return Outlook(limits, kv, queues, throttle)
        case StartRule.RESERVE_TO_LIMIT:
            return ReserveToLimit(limits, kv, queues)
        case StartRule.TOKEN_RATIO:
            return TokenRatio(limits, kv, queues)
