"""`blindcal reproduce`, killed while its processes are at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    """After kill -9 its workers end, though they are at work."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = (
        "from pathlib import Path\n"
        "from blindcal.reproduce import sources, table\n"
        "from blindcal.simulation.simulate import generate\n"
        "def held(run):\n"
        f"    return [] if run.seed < 2 else Path({str(gate)!r}).read_text()  # nobody writes\n"
        "table.TableRun.measure = held\n"
        "if __name__ == '__main__':\n"
        "    known = sources.from_probabilities('made', 'up', *generate(300, 0))\n"
        "    runs = table.table_runs(known, methods=('blind',))\n"
        "    for cells in table.measure_runs(runs, jobs=2):\n"
        "        print(cells, flush=True)\n"
    )
    (tmp_path / "work.py").write_text(script)
    child = subprocess.Popen([sys.executable, tmp_path / "work.py"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "[]\n"
        child.send_signal(signal.SIGKILL)
        child.stdout.read()  # ends when the last worker that shares it has
