"""Let Spark's Python processes in this environment import PySpark from its folder, not from its zip.

`python scripts/worker_path.py`, once for an environment. Spark puts `pyspark.zip` and a jar first on the path
of its Python processes: one for each stream's source, and several more for the first query. Python compiles
what it takes from a zip anew in every process, which is most of the 1.4 s of processor time that such a start
costs; the installed folder has the same code, compiled.
"""

import sysconfig
from pathlib import Path

LINE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if '/site-packages/pyspark/' not in entry]; "
    "sys.path_importer_cache.clear()\n"
)
"""Python runs it whenever it starts: such lines in `*.pth` files have to begin with `import`."""

if __name__ == "__main__":
    (Path(sysconfig.get_path("purelib")) / "spark_worker_path.pth").write_text(LINE)
