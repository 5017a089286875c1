"""Operations on users."""

from collections.abc import Generator

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from beeyard.facts.seen import seen
from beeyard.facts.users import UserExists


@operation()
def service_user(user: str) -> Generator[StringCommand, None, None]:
    """
    Ensure that there is a user for a service: without a home, a shell or a password.

    + user: the name
    """
    if seen(UserExists, user=user):
        host.noop(f"user {user} is there")
        return
    yield StringCommand(
        "useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin",
        QuoteString(user),
    )
