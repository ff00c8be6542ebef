"""Help and version of the `datapipe` command."""

import re

import datapipe
from datapipe.cli.command import COMMANDS, imported
from tests.programs import python


def test_version_is_said(run):
    assert run("--version").stdout == f"datapipe {datapipe.__version__}\n"


def test_every_command_has_help_and_that_of_the_program_lists_it_and_imports_none(run):
    program = (
        "import sys; from datapipe.cli import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "finally: assert not {'numpy', 'pyarrow', 'PIL'} & set(sys.modules), 'slow imports'"
    )
    wide = {"COLUMNS": "200", "PATH": ""}
    listed = python(program, env=wide, check=True).stdout
    for name in COMMANDS:
        command = imported(name)
        assert command.name == name
        summary = command.help.partition("\n")[0]
        assert any({name, summary} <= set(re.split("  +|│ ", line)) for line in listed.split("\n"))
        assert "Usage" in run(name, "--help").stdout


def test_a_mistyped_command_gets_the_name_that_was_meant(run):
    assert "Did you mean 'pack'?" in run("pakc").stderr
