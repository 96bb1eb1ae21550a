"""How fast `moat diff` compares two large tables, beside datacompy on the same files; JSON and a Markdown table.

    python -m benchmarks.diff                                    # a million rows each
    python -m benchmarks.diff --peer PYTHON                      # datacompy too, by an interpreter that has it
    python -m benchmarks.diff --rows 4000000 --name diff_4m

The tables are of the kind `actions`: of the second's rows one in twenty has other actions, one in a hundred is gone and as
many are new. Every figure is of a process of its own, start included: median of the runs, greatest memory of them. Results
go to benchmarks/results/NAME.json and NAME.md. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from moat.schemas.actions import ACTIONS

RESULTS = Path(__file__).parent / "results"
K = 8  # candidates of a task
READ = "import sys, datacompy, pandas, polars; one, other = sys.argv[1:3]; "
PEERS = {
    "datacompy, polars": READ
    + "found = datacompy.PolarsCompare(polars.read_parquet(one), polars.read_parquet(other), join_columns=['task_id', 'k'])"
    + "; print(found.report())",
    "datacompy, pandas": READ
    + "found = datacompy.PandasCompare(pandas.read_parquet(one), pandas.read_parquet(other), join_columns=['task_id', 'k'])"
    + "; print(found.report())",
}


def table(rows: int, seed: int) -> pl.DataFrame:
    """Actions of `rows` candidates with texts of about 90 characters."""
    rng = np.random.default_rng(seed)
    numbers = pl.DataFrame({f"n{i}": rng.integers(1, 1000, rows) for i in range(6)})
    calls = [pl.format("R{} = Calculator({} * {})", i + 1, f"n{2 * i}", f"n{2 * i + 1}") for i in range(3)]
    tasks = [f"{number:016x}" for number in rng.integers(0, 2**63, -(-rows // K))]
    return numbers.select(
        task_id=pl.Series(tasks).gather(np.arange(rows) // K),
        k=pl.Series(np.arange(rows) % K, dtype=pl.Int32),
        actions=pl.concat_str(*calls, separator="; "),
        finish_reason=pl.lit("stop"),
        outcome=pl.Series(rng.choice(["reached", "not_reached", "syntax"], rows, p=[0.6, 0.38, 0.02])),
        answer=pl.col("n0").cast(pl.String),
        message=pl.lit(""),
    )


def changed(rows: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The same with one in twenty of other actions and outcome, one in a hundred of another task."""
    rng = np.random.default_rng(seed)
    drawn = pl.Series(rng.random(len(rows)))
    other, moved = drawn < 0.05, (drawn > 0.5) & (drawn < 0.51)
    return rows.with_columns(
        actions=pl.when(other).then(pl.col("actions").str.replace(r"\*", "+")).otherwise("actions"),
        outcome=pl.when(other & (pl.col("outcome") == "not_reached")).then(pl.lit("reached")).otherwise("outcome"),
        task_id=pl.when(moved).then(pl.format("new{}", pl.col("task_id").str.slice(3))).otherwise("task_id"),
    )


def write(folder: Path, rows: int) -> None:
    """Write the two tables. In a process of its own: what is started from a large process counts as large from the start."""
    first = table(rows, 0)
    ACTIONS.write(folder / "one.parquet", first, {})
    ACTIONS.write(folder / "other.parquet", changed(first, 1), {})


def measured(command: Sequence[str], runs: int, status: int) -> dict[str, Any]:
    """Median seconds by the clock and of the processor, and the greatest memory, of a command that ends with `status`."""
    clocks, processors, memory = [], [], 0
    for _ in range(runs):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, ended, used = os.wait4(process.pid, 0)
        clocks.append(time.perf_counter() - start)
        if os.waitstatus_to_exitcode(ended) != status:
            raise SystemExit(f"{command} failed")
        processors.append(used.ru_utime + used.ru_stime)
        memory = max(memory, used.ru_maxrss)
    return {
        "seconds": round(statistics.median(clocks), 2),
        "cpu_seconds": round(statistics.median(processors), 2),
        "peak_gb": round(memory * 1024 / 1e9, 2),
    }


def main() -> None:
    """Make the tables, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", help="a Python that has datacompy, pandas and polars")
    parser.add_argument("--name", default="diff", help="of the result files")
    given = parser.parse_args()
    load = round(os.getloadavg()[0], 1)  # of what else runs: more than the cores make the seconds by the clock longer
    with tempfile.TemporaryDirectory() as folder:
        one, other = (str(Path(folder) / name) for name in ("one.parquet", "other.parquet"))
        writing = get_context("spawn").Process(target=write, args=(Path(folder), given.rows))
        writing.start()
        writing.join()
        sizes = [round(Path(path).stat().st_size / 1e6, 1) for path in (one, other)]
        found = {"moat diff": measured([sys.executable, "-m", "moat.cli", "diff", one, other, "--json"], given.runs, 1)}
        for name, program in PEERS.items() if given.peer else ():
            found[name] = measured([given.peer, "-c", program, one, other], given.runs, 0)
    versions = {name: version(name) for name in ("polars", "pyarrow")}
    if given.peer:
        ask = "from importlib.metadata import version; print(*map(version, ['datacompy', 'pandas', 'polars']))"
        peers = subprocess.run([given.peer, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
        versions |= {f"peer {name}": one for name, one in zip(("datacompy", "pandas", "polars"), peers, strict=True)}
    host = {"machine": platform.machine(), "cores": os.cpu_count(), "load before": load, "python": platform.python_version()}
    host |= versions
    told = {"host": host, "rows": given.rows, "file_mb": sizes, "runs": given.runs, "found": found}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{given.name}.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    (RESULTS / f"{given.name}.md").write_text(markdown(told), encoding="utf-8")
    print(markdown(told))


def markdown(told: dict[str, Any]) -> str:
    """The results as a table, with what they were measured on."""
    lines = [f"Two tables of {told['rows']:,} rows, {told['file_mb'][0]} MB each; median of {told['runs']} runs.", ""]
    lines += ["| | seconds | CPU seconds | peak memory, GB |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {name} | {one['seconds']} | {one['cpu_seconds']} | {one['peak_gb']} |" for name, one in told["found"].items()
    ]
    return "\n".join([*lines, "", ", ".join(f"{name} {value}" for name, value in told["host"].items()), ""])


if __name__ == "__main__":
    main()
