"""The command that takes the published figures has a command for each file, and each workload exists."""

import shlex
from itertools import pairwise

import pytest

from benchmarks.__main__ import options_parser
from benchmarks.comparison import STEADY
from benchmarks.figures import FOLDER
from benchmarks.publish import COMMANDS
from benchmarks.workloads import long_workloads, network_workloads, workloads


def test_each_file_of_figures_has_a_command() -> None:
    assert {file.stem for file in FOLDER.glob("*.json")} == {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS.values())
def test_a_command_names_workloads_that_exist(command: str) -> None:
    options = options_parser().parse_args([])
    known = {*workloads(options), *long_workloads(options), *network_workloads(options), STEADY}
    named = {value for option, value in pairwise(shlex.split(command)) if option == "--workload"}
    assert named <= known
