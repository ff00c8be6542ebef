"""What a command cannot do is said in a line: value, cause, remedy. No dataset is written."""

import shlex
import tarfile

import pytest

import datapipe
from tests.case_files import cases, table


@pytest.fixture(scope="module")
def folder(tmp_path_factory, raw, tokenizer, make_folder, make_broken, make_tar):
    """The files that commands name: raw data, shards, arrays, a tokenizer, modules and mixtures."""
    folder = tmp_path_factory.mktemp("refusals")
    make_broken(make_folder(folder / "raw", 1))
    datapipe.pack_dataset(raw, folder / "shards", shard_size=16)
    image = datapipe.ImageSpec(size=8)
    datapipe.convert_dataset(folder / "shards", folder / "arrays", image=image)
    (folder / "tokenizer.json").symlink_to(tokenizer)
    (folder / "refused_loader.py").write_text(
        "def nothing(num_workers, prefetch_factor): return []"
    )
    (folder / "lacking.py").write_text("import not_installed_at_all")
    (folder / "failing.py").write_text("1 / 0")
    (folder / "empty").mkdir()
    (folder / "hollow").mkdir()
    tarfile.open(folder / "hollow" / "0.tar", "w").close()
    datapipe.index_shards(folder / "hollow")
    make_tar(folder / "nameless" / "0.tar", [("README", b"no sample")])
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.txt").touch()
    (folder / "unfinished" / ".pack").mkdir(parents=True)
    for name, content in table("cli/mixtures").items():
        (folder / f"{name}.yaml").write_text(content)
    return folder


@pytest.mark.parametrize(("command", "message"), cases("cli/refusals"))
def test_a_command_says_what_it_cannot_do_and_writes_no_dataset(
    run, folder, monkeypatch, command, message
):
    monkeypatch.chdir(folder)
    before = written(folder)
    done = run(*shlex.split(command))
    assert (done.exit_code, done.stdout) == (1, ""), done.stdout
    error, *others = f"\n{done.stderr}".split("\nError: ")[1:]
    assert others == []
    assert "Traceback" not in done.stderr
    assert message in error.splitlines()[0]
    assert ".yaml" not in command or done.stderr.count("\n") == 1  # a wrong mixture, in a line
    assert written(folder) == before


def written(folder):
    """The datasets below a folder, and the files of the first two."""
    return {*folder.rglob("dataset.json"), *folder.glob("shards/[!.]*"), *folder.glob("arrays/*")}
