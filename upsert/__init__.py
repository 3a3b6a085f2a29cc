"""Tables with a primary key that can be looked up, and the changelogs they write and read."""

__all__: list[str] = []
