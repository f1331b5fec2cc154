"""The notebooks as pages of the documentation, as they were executed: a hook of mkdocs (`make site`)."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

HERE = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(HERE.glob("*.ipynb")):
        text, resources = MarkdownExporter().from_filename(path, {"unique_key": path.stem})
        text = text.replace("](../docs/", "](../").replace(".ipynb)", ".md)")  # a page lies among those of docs/
        pages: dict[str, str | bytes] = {f"{path.stem}.md": text} | resources["outputs"]
        for name, content in pages.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files
