"""The container of examples/cluster, and its Slurm script within it, with stand-ins for both.

test_launched.py runs the script under Slurm.
"""

import os
import subprocess

from conftest import ROOT

STAND_INS = {
    "scontrol": 'printf "node7\\nnode8\\n"',
    "srun": 'shift; for node in 0 1; do SLURM_NODEID=$node "$@"; done',  # after --kill-on-bad-exit
    "fairseq-ext": 'printf "%s|" "$@"; echo',
    "apptainer": 'echo "$1 $2 $3"; shift 3; "$@"',
}


def test_each_node_launches_its_part_in_the_container(tmp_path):
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "20001"}
    command = ["data-bin/mine", tmp_path / "run", "--adam-betas", "(0.9, 0.98)", "--arch", "a"]
    done = subprocess.run(
        ["bash", ROOT / "examples" / "cluster" / "train.sbatch", *command],
        env=os.environ
        | slurm
        | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAIRSEQ_EXT_IMAGE": "image.sif"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rest = (
        f"fairseq-train|data-bin/mine|--save-dir|{tmp_path}/run|--adam-betas|(0.9, 0.98)|--arch|a|"
    )
    launched = [
        f"launch|--nodes|2|--node-rank|{node}|--master|node7:20001|--|{rest}" for node in (0, 1)
    ]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("launch")] == launched
    assert lines.count("exec --nv image.sif") == 2
    assert (tmp_path / "run" / "train.log").read_text() == done.stdout


def test_the_container_pins_what_the_repository_pins():
    text = (ROOT / "examples" / "cluster" / "fairseq_ext.def").read_text()
    assert text.count("pip install --no-cache-dir -c constraints.txt") == 2
    assert "torch numpy cython setuptools wheel" in text and "--no-build-isolation" in text
