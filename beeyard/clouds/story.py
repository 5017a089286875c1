"""From nothing to a pod that lets us in, and back to nothing: each step looked at again, none of it done twice."""

import contextlib
import fcntl
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from beeyard.clouds import shell
from beeyard.clouds.needs import Choice
from beeyard.clouds.pods import LABEL, PREFIX, VARIABLE, Cloud, CloudError, Kept, NoCapacity, Order, Pod, Unclear

MINUTE = 60.0
MOST_OFFERS_TRIED = 5
MONTH_HOURS = 730


@dataclass(frozen=True)
class Patience:
    """How long things may take, in seconds."""

    # From the order until SSH lets us in: an image of 10 GB comes first.
    start_s: float = 15 * MINUTE
    # A create whose answer was lost shows up in this time.
    appear_s: float = 60
    gone_s: float = 90
    every_s: float = 5
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Teller:
    """Who is told, and who is asked."""

    say: Callable[[str], None]
    confirm: Callable[[str], bool]


PATIENT = Patience()


class Declined(CloudError):
    """The user said no."""


def find(cloud: Cloud, name: str | None) -> Pod:
    """
    The pod of that name; without one, the only one.

    :raises CloudError: none or several.
    """
    found = [pod for pod in cloud.pods() if name in (None, pod.name, pod.id)]
    if not found:
        what = f"no pod {name!r}" if name else "no pod of ours"
        raise CloudError(
            f"{cloud.name} has {what}. Fix: `beeyard pods up {cloud.name} PRESET`, or see `beeyard pods list`"
        )
    if len(found) > 1:
        raise CloudError(
            f"{cloud.name} has {len(found)} pods: {', '.join(f'{pod.name} ({pod.id})' for pod in found)}. "
            "Fix: name one, by its id where names are equal"
        )
    return found[0]


def up(cloud: Cloud, order: Order, choices: list[Choice], tell: Teller, patience: Patience = PATIENT) -> Pod:
    """
    One pod of that name that lets us in: the one that is there, else a new one.

    :param choices: offers that can run it, the best first
    :raises CloudError: nothing could be rented, or what was rented never let us in; then it is ended again.
    """
    with _alone(cloud, order), _leaving_in_order():
        there = [pod for pod in cloud.pods() if pod.label == order.label]
        if there:
            return _there_already(cloud, there, order, tell, patience)
        pod_id = _rent_or_nothing(cloud, order, choices, tell, patience)
        began = time.monotonic()
        try:
            _only_one(cloud, order, pod_id)
            cloud.admit(pod_id, order.public_key)
            pod = await_ready(cloud, pod_id, began + patience.start_s, tell, patience)
            _watched(pod, tell, patience)
        except BaseException as error:
            # Whatever happened, also Ctrl+C: nobody has seen this pod yet, so nobody would end it.
            tell.say(f"{order.name} ({pod_id}) is ended again: {type(error).__name__}")
            with _uninterrupted():
                _insist(cloud, _ours(cloud, pod_id, order), tell, patience)
            raise
        tell.say(f"{pod.name} is there after {time.monotonic() - began:.0f} s")
        return pod


def _rent_or_nothing(cloud: Cloud, order: Order, choices: list[Choice], tell: Teller, patience: Patience) -> str:
    """The new pod's id; whoever interrupts leaves none behind, although its id may not be known yet."""
    try:
        return _rent(cloud, order, choices, tell, patience)
    except CloudError:
        raise
    except BaseException:
        with _uninterrupted():
            for pod in cloud.pods():
                if pod.label == order.label:
                    _insist(cloud, pod, tell, patience)
        raise


def _there_already(cloud: Cloud, there: list[Pod], order: Order, tell: Teller, patience: Patience) -> Pod:
    if len(there) > 1:
        raise CloudError(
            f"{cloud.name} has {len(there)} pods called {order.name}: {', '.join(pod.id for pod in there)}. "
            f"Fix: end those that you do not want, as in `beeyard pods down {cloud.name} {there[-1].id}`"
        )
    (pod,) = there
    if pod.state in ("stopped", "lost"):
        raise CloudError(
            f"{order.name} is there already, and it is {pod.state}. "
            f"Fix: `beeyard pods start {cloud.name} {order.name}`, or `down` and then `up` again"
        )
    tell.say(f"{order.name} is there already ({pod.id}): nothing is rented")
    rented_for = pod.said.get(f"{VARIABLE}PRESET", order.preset)
    if rented_for != order.preset:
        tell.say(f"it was rented for {rented_for}: deploy {order.preset} with DATA=llama_preset={order.preset}")
    found = await_ready(cloud, pod.id, time.monotonic() + patience.start_s, tell, patience)
    _watched(found, tell, patience)
    return found


@contextlib.contextmanager
def _alone(cloud: Cloud, order: Order) -> Iterator[None]:
    """Two of us on this machine do not rent the same name at the same time."""
    shell.STATE.mkdir(parents=True, exist_ok=True)
    with (shell.STATE / f"{cloud.name}-{order.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _rent(cloud: Cloud, order: Order, choices: list[Choice], tell: Teller, patience: Patience) -> str:
    """The new pod's id, of the first offer that is still there."""
    agreed = -1.0
    for choice in choices[:MOST_OFFERS_TRIED]:
        offer = choice.offer
        # A yes is for a price, and for whatever is no dearer.
        if offer.price > agreed and not tell.confirm(f"Rent {told(choice)}, until {order.deadline:%F %H:%M} UTC?"):
            raise Declined("nothing was rented. Fix: say yes, or choose other limits")
        agreed = max(agreed, offer.price)
        try:
            with _uninterrupted():
                return cloud.create(offer, order)
        except NoCapacity as error:
            tell.say(f"{error}".partition(" Fix:")[0])
        except Unclear as error:
            return _appeared(cloud, order, error, patience, tell)
    raise NoCapacity(
        f"{min(len(choices), MOST_OFFERS_TRIED)} offers of {cloud.name} were gone when they were asked for. "
        "Fix: try again in some minutes, or take the other cloud"
    )


def _appeared(cloud: Cloud, order: Order, error: Unclear, patience: Patience, tell: Teller) -> str:
    """The id of what was made although its answer was lost; it is looked for, never ordered again."""
    tell.say(f"the answer to the order is missing; looking for {order.label} for {patience.appear_s:g} s")
    until = time.monotonic() + patience.appear_s
    while True:
        with contextlib.suppress(Unclear):
            found = [pod for pod in cloud.pods() if pod.label == order.label]
            if found:
                return found[0].id
        if time.monotonic() >= until:
            raise Unclear(
                f"whether {order.name} was rented is not known: {error}".partition(" Fix:")[0]
                + f" Fix: see `beeyard pods list {cloud.name}` now and again in some minutes; if it is there, "
                f"`beeyard pods down {cloud.name} {order.name}` ends it"
            ) from error
        patience.pause(patience.every_s)


def _only_one(cloud: Cloud, order: Order, pod_id: str) -> None:
    """Another machine may have ordered the same name at the same time: the one with the lower id stays."""
    same = sorted(pod.id for pod in cloud.pods() if pod.label == order.label)
    if len(same) > 1 and pod_id != same[0]:
        raise CloudError(
            f"somebody else rented {order.name} at the same time ({same[0]}). Fix: use that one, or another --name"
        )


def await_ready(cloud: Cloud, pod_id: str, until: float, tell: Teller, patience: Patience = PATIENT) -> Pod:
    """
    Wait until a pod has an address and lets us in.

    :param until: of time.monotonic()
    :raises CloudError: it never does, it came without a card, or it can never be reached.
    """
    last = ""
    while True:
        pod = _seen(cloud, pod_id)
        if pod is not None:
            if pod.gpus == 0:
                raise CloudError(
                    f"{pod.name} came up with no GPU: its machine has none left. Fix: `beeyard pods down "
                    f"{cloud.name} {pod.name}` and rent anew; what is on its disk can be fetched first over SSH"
                )
            if pod.unreachable:
                raise CloudError(f"{pod.name} can never be reached: {pod.unreachable}. Fix: end it and rent anew")
            if pod.state in ("stopped", "lost"):
                raise CloudError(f"{pod.name} does not run: {pod.told or pod.state}. Fix: end it and rent anew")
            if pod.state != last:
                tell.say(f"{pod.name}: {pod.state}" + (f" at {pod.ssh.host}:{pod.ssh.port}" if pod.ssh else ""))
                last = pod.state
            if pod.ssh is not None:
                # Its address may change meanwhile: it is asked for again each time.
                why = shell.lets_in(pod, min(until, time.monotonic() + 3 * patience.every_s), patience.pause)
                if not why:
                    return pod
                last = why
        if time.monotonic() >= until:
            raise CloudError(
                f"{pod.name if pod else pod_id} did not start in {patience.start_s / MINUTE:g} minutes"
                f" ({last.partition('. Fix:')[0] or 'it is not there'}). Fix: rent anew, with another offer"
            )
        patience.pause(patience.every_s)


def _seen(cloud: Cloud, pod_id: str) -> Pod | None:
    """A pod as the provider has it, or None while it says nothing: a hiccup is no reason to give up what is paid."""
    try:
        return cloud.pod(pod_id)
    except Unclear:
        return None


def _watched(pod: Pod, tell: Teller, patience: Patience) -> None:
    """See to it that the watcher runs in the pod, as it should for the deadline."""
    shell.place_watcher(pod)
    for _ in range(10):
        said = shell.watcher(pod)
        if said is not None:
            tell.say(f"{pod.name}: the watcher runs, until {said['deadline']}")
            return
        patience.pause(min(1.0, patience.every_s))
    raise CloudError(f"no watcher runs in {pod.name}, so nothing would end it. Fix: see {PREFIX}/log/watch.log there")


def start(cloud: Cloud, pod: Pod, tell: Teller, patience: Patience = PATIENT) -> Pod:
    """
    Let a stopped pod run again, and wait until it lets us in.

    :raises CloudError: it has no card or no time left; without a card it is stopped again.
    """
    left = seconds_left(pod)
    if left is not None and left < 10 * MINUTE:
        raise CloudError(
            f"{pod.name}'s deadline was or is {pod.deadline:%F %H:%M} UTC, and it would end at once. "
            f"Fix: `beeyard pods down {cloud.name} {pod.name}`, then `up`"
        )
    _check(cloud, pod)
    shell.forget_host_key(pod)
    cloud.start(pod.id)
    try:
        found = await_ready(cloud, pod.id, time.monotonic() + patience.start_s, tell, patience)
    except CloudError:
        again = cloud.pod(pod.id)
        if again is not None and again.gpus == 0:
            cloud.stop(pod.id)
            tell.say(f"{pod.name} is stopped again: a pod without a card costs for nothing")
        raise
    _watched(found, tell, patience)
    return found


def stop(cloud: Cloud, pod: Pod, tell: Teller) -> None:
    """Stop a pod, and say what goes on costing."""
    _check(cloud, pod)
    cloud.stop(pod.id)
    tell.say(f"{pod.name} is stopped. {pod.disk_gb:g} GB of disk go on costing until `beeyard pods down`")


def end_and_prove(cloud: Cloud, pods: list[Pod], tell: Teller, patience: Patience = PATIENT) -> None:
    """
    End pods, and ask the provider until none of them is left.

    :raises CloudError: one is still there, or nobody knows.
    """
    for pod in pods:
        _check(cloud, pod)
        cloud.end(pod.id)
    ids, until = {pod.id for pod in pods}, time.monotonic() + patience.gone_s
    while True:
        try:
            left = [pod for pod in cloud.pods() if pod.id in ids]
        except Unclear:
            left = pods
        if not left:
            break
        if time.monotonic() >= until:
            names = ", ".join(f"{pod.name} ({pod.id})" for pod in left)
            raise CloudError(
                f"{cloud.name} was told to end {names}, and it still lists them: they may go on costing. "
                "Fix: end them in the provider's console"
            )
        patience.pause(patience.every_s)
    for pod in pods:
        shell.forget_host_key(pod)
        tell.say(f"{pod.name} ({pod.id}) is gone: {cloud.name} lists it no more")
    for line in costs_on(cloud):
        tell.say(line)


def costs_on(cloud: Cloud) -> list[str]:
    """What still costs money at the provider, as far as we can see it, a line each."""
    lines = [f"still there: {pod.name} ({pod.id}), {pod.state}" for pod in cloud.pods()]
    lines += [f"goes on costing: {_kept(kept)}" for kept in cloud.kept()]
    return lines or [f"{cloud.name} has nothing of ours left"]


def _kept(kept: Kept) -> str:
    dollars = f", about ${kept.dollars_a_month:.2f} a month" if kept.dollars_a_month is not None else ""
    return f"{kept.what}{dollars}"


def _check(cloud: Cloud, pod: Pod) -> None:
    """Refuse to touch what does not carry our label, by what the provider says now."""
    now = cloud.pod(pod.id)
    if now is not None and not now.is_ours:
        raise CloudError(
            f"{pod.id} is called {now.label!r}, which does not begin with {LABEL}: it is not ours. "
            "Fix: use the provider's console"
        )


def _ours(cloud: Cloud, pod_id: str, order: Order) -> Pod:
    """What we just made, also while the provider does not show it yet."""
    return _seen(cloud, pod_id) or Pod(cloud=cloud.name, id=pod_id, label=order.label, state="starting")


def seconds_left(pod: Pod) -> float | None:
    """Until its deadline; None where it has none."""
    return pod.deadline.timestamp() - time.time() if pod.deadline else None


def told(choice: Choice) -> str:
    """An offer in one line."""
    offer = choice.offer
    words = [f"{offer.gpu} ({offer.memory_mib} MiB) for ${offer.price:.3f} an hour", offer.region, offer.stock]
    if offer.reliability is not None:
        words.append(f"reliability {offer.reliability:.3f}")
    return f"{offer.cloud}: " + ", ".join(word for word in words if word)


# --- whatever happens ------------------------------------------------------------------------------

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def down_whatever_happened(
    cloud: Cloud, name: str | None, tell: Teller, patience: Patience = PATIENT
) -> Iterator[Pod]:
    """
    End a pod when the block ends: well, with an error, or by a signal that asks this process to stop.

    SIGTERM and SIGHUP become ``SystemExit`` inside of the block, SIGINT ``KeyboardInterrupt`` as ever. While the pod
    is ended further ones wait. Only from the main thread. What SIGKILL ends is left to the pod's deadline.

    :raises CloudError: there is no such pod; or it could not be ended, over whatever the block raised.
    """
    pod = find(cloud, name)
    with _leaving_in_order():
        try:
            yield pod
        finally:
            with _uninterrupted():
                tell.say(f"ending {pod.name} ({pod.id}), whatever happened")
                _insist(cloud, pod, tell, patience)


@contextlib.contextmanager
def _leaving_in_order() -> Iterator[None]:
    """
    Let SIGTERM and SIGHUP raise ``SystemExit``, so that what was begun is ended; SIGINT raises by itself.

    Only the main thread gets signals: in any other this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _leave) for number in STOPPING if number is not signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _insist(cloud: Cloud, pod: Pod, tell: Teller, patience: Patience) -> None:
    """End it; an API that fails now may answer in a minute."""
    for attempt in range(3):
        try:
            end_and_prove(cloud, [pod], tell, patience)
        except CloudError as error:
            if attempt == 2:
                deadline = f"{pod.deadline:%F %H:%M} UTC" if pod.deadline else "unknown"
                raise CloudError(
                    f"{pod.name} ({pod.id}) could not be ended and may go on costing: {error}".partition(" Fix:")[0]
                    + f" Fix: `beeyard pods down {cloud.name} {pod.name}`, or end it in the provider's console; its "
                    f"deadline is {deadline}"
                ) from error
            patience.pause(4 * patience.every_s)
        else:
            return


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
