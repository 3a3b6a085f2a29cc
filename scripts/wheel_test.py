"""Use a wheel in an empty environment, away from the checkout: `python scripts/wheel_test.py dist/*.whl`.

It is installed as a user does it, with Spark and all else from the package index. Then the README's example
runs in an empty folder, and so do the command and the cells of the notebook that users begin with.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

IMPORTS = """
import deltajoin, planner, pyspark, sys, upsert
import deltajoin.planner, deltajoin.upsert.store.table

assert deltajoin.planner is planner and deltajoin.upsert.store.table.Table is upsert.Table
for package in (deltajoin, planner, upsert, pyspark):
    assert package.__file__.startswith(sys.prefix), package.__file__
print("deltajoin", deltajoin.__version__, "with pyspark", pyspark.__version__)
"""


NOTEBOOK = REPOSITORY / "examples" / "notebooks" / "quick_start.ipynb"


def notebook(path: Path) -> str:
    """The cells of code of a notebook as one program."""
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def main(wheel: Path) -> None:
    """Install the wheel and use it; the first step that fails ends the program with its error."""
    (example,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory(prefix="wheel-test-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / "bin"
        work = folder / "work"
        work.mkdir()
        variables = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "PYSPARK", "SPARK"))
        }
        variables |= {"PYSPARK_PYTHON": str(programs / "python"), "SPARK_LOCAL_IP": "127.0.0.1"}

        def run(*command: str) -> str:
            done = subprocess.run(
                [str(programs / command[0]), *command[1:]],
                cwd=work,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(f"{done.stdout}\nwheel-test: {' '.join(command)!r} failed")
            return done.stdout

        run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel.resolve()))
        print(run("python", "-c", IMPORTS), end="")
        print(run("python", "-c", example), end="")
        print(run("python", "-c", notebook(NOTEBOOK)), end="")
        listed = run("deltajoin", "sql", "--warehouse", "warehouse", "-e", "SHOW TABLES")
        print(listed, end="")
        if not {"orders", "products", "sales"} <= set(listed.split()):
            sys.exit("wheel-test: the command does not list the example's tables")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
