"""Functions for `test_functions`, which executors cannot import: `udf` asks the driver what a STRING is."""

from collections.abc import Iterator

from pyspark.sql.functions import udf, udtf


@udf(returnType="STRING")
def reversed_text(text):  # Spark takes type hints for those of pandas
    """The text from its end to its beginning."""
    return None if text is None else _turned(text)


def _turned(text: str) -> str:
    return text[::-1]


@udtf(returnType="number INT")
class Numbers:
    """Rows of numbers below one."""

    def eval(self, end: int) -> Iterator[tuple[int]]:
        """A row for each."""
        for number in range(end):
            yield (number,)


def without_type(text: str) -> str:
    """No function of Spark's."""
    return text
