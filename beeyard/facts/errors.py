"""What a fact says of an answer that it cannot read."""

from pyinfra.api import FactProcessError


def not_understood(what: str, answer: object) -> FactProcessError:
    """
    A sentence for an answer that is not as it must be; raise it from None, or pyinfra shows its cause instead.

    :param what: what was asked for
    """
    return FactProcessError(f"what this host says of {what} is not understood: {answer}. Fix: report it as an issue")
