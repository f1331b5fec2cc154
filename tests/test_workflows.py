"""What .github/workflows says can be read, and what it runs is there. Nothing here shows that it runs."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def steps(name: str) -> list[dict]:
    jobs = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in (job, *job.get("steps", ()))]


def test_there_are_the_three():
    assert sorted(WORKFLOWS) == ["release", "test", "wheels"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_it_runs_is_there(name):
    commands = "\n".join(step["run"] for step in steps(name) if "run" in step)
    for target in re.findall(r"\bmake (\S+)", commands):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
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
