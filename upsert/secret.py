"""A text that must not be printed: passwords, tokens, URLs that hold one (pure)."""


class Secret(str):
    """A text that does not show itself.

    >>> Secret("user:password")
    '***'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"
