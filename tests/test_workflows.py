"""What .github/workflows, the dev container and pre-commit say can be read, and what they run is there. Nothing here
shows that it runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import relattn
from benchmarks import against

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def steps(name: str) -> list[dict]:
    jobs = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in (job, *job.get("steps", ()))]


def target_is_there(name: str) -> bool:
    return re.search(rf"^{re.escape(name)}:", MAKEFILE, re.MULTILINE) is not None


def test_there_are_the_four():
    assert sorted(WORKFLOWS) == ["benchmarks", "release", "test", "wheels"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_it_runs_is_there(name):
    commands = "\n".join(step["run"] for step in steps(name) if "run" in step)
    for target in re.findall(r"\bmake (\S+)", commands):
        assert target_is_there(target), target
    for module in re.findall(r"-m (\S+)", commands):
        path = module.replace(".", "/")
        assert any((ROOT / at / f"{path}{end}").exists() for at in (".", "src") for end in (".py", "/__main__.py"))
    for path in re.findall(r"\btests/\S+", WORKFLOWS[name].read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_it_uses_is_this_repositorys_or_of_a_major_version(name):
    used = [step["uses"] for step in steps(name) if "uses" in step]
    assert used
    for action in used:
        if action.startswith("./"):
            assert (ROOT / action).exists(), action
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action), action


def test_only_the_job_that_publishes_may_and_it_has_no_secret():
    text = {name: path.read_text(encoding="utf-8") for name, path in WORKFLOWS.items()}
    assert not any("secrets" in words for words in text.values())
    writing = [(name, step) for name in WORKFLOWS for step in steps(name) if "id-token" in step.get("permissions", {})]
    ((name, job),) = writing
    assert name == "release"
    assert job["environment"] == "pypi"
    assert job["needs"] == ["test", "wheels"]
    assert job["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")


def test_a_release_has_notes(tmp_path):
    (line,) = (step["run"] for step in steps("release") if step.get("run", "").startswith("sed "))
    (tmp_path / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), encoding="utf-8")
    environment = {**os.environ, "GITHUB_REF_NAME": f"v{relattn.__version__}"}
    subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, check=True)
    notes = (tmp_path / "notes.md").read_text(encoding="utf-8")
    assert "### Added" in notes
    assert "\n## " not in notes


def test_the_comparison_is_called_with_what_it_takes(monkeypatch, tmp_path):
    (step,) = (step for step in steps("benchmarks") if "benchmarks.against" in step.get("run", ""))
    (line,) = (line for line in step["run"].splitlines() if "benchmarks.against" in line)
    (tmp_path / "build" / "base" / "relattn").mkdir(parents=True)
    (tmp_path / "build" / "base" / "relattn" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(line)[2:])
    arguments = against.parse()
    assert arguments.other == tmp_path / "build" / "base"
    assert f"--target {arguments.other.relative_to(tmp_path)} " in step["run"]
    assert f"cat {arguments.out} " in step["run"]
    (kept,) = (step["with"]["path"] for step in steps("benchmarks") if "upload-artifact" in step.get("uses", ""))
    assert kept == str(arguments.out)


def test_a_pull_requests_code_runs_where_nothing_may_be_written():
    """The one job that may comment has no checkout, builds nothing, and is for this repository's own branches."""
    workflow = yaml.safe_load(WORKFLOWS["benchmarks"].read_text(encoding="utf-8"))
    assert list(workflow[True]) == ["pull_request"]  # YAML 1.1 reads `on` so; not pull_request_target
    assert workflow["permissions"] == {"contents": "read"}
    compare, comment = workflow["jobs"]["compare"], workflow["jobs"]["comment"]
    assert "permissions" not in compare
    assert compare["steps"][0]["with"]["persist-credentials"] is False
    assert "token" not in json.dumps(compare)
    assert comment["permissions"] == {"pull-requests": "write"}
    assert comment["if"] == "github.event.pull_request.head.repo.full_name == github.repository"
    download, post = comment["steps"]
    assert download["uses"].startswith("actions/download-artifact@")
    assert post["run"].startswith("gh pr comment ")
    assert "${{" not in post["run"]  # which would put what others write into a command


def test_the_dev_container_is_set_up_by_the_makefile():
    """Its fields are ones of the dev container specification for an image, each of the type given there."""
    found = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert {name: type(value) for name, value in found.items()} == {
        "name": str,
        "image": str,
        "postCreateCommand": str,
        "customizations": dict,
    }
    make, target = found["postCreateCommand"].split()
    assert make == "make"
    assert target_is_there(target)
    (interpreter,) = found["customizations"]["vscode"]["settings"].values()
    assert interpreter == "${containerWorkspaceFolder}/.venv/bin/python"


def test_pre_commit_is_make_check_by_the_pinned_tools():
    """Its one hook is the command itself, so that its tools are those of .venv, which has the versions pinned."""
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (hook,) = repo["hooks"]
    assert (repo["repo"], hook["entry"], hook["language"], hook["pass_filenames"]) == (
        "local",
        "make check",
        "system",
        False,
    )
    (recipe,) = re.findall(r"^check: \.venv/installed .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    tools = set(re.findall(r"^\t\$\(BIN\)/(\w+)", recipe, re.MULTILINE))
    assert tools == {"ruff", "mypy"}
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert all(re.search(rf"^{tool}==\d", pinned, re.MULTILINE) for tool in tools)
    installs = re.findall(r"pip install .*", MAKEFILE)
    assert installs
    assert all("--constraint constraints.txt" in command for command in installs)
