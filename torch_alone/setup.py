"""The distribution fairseq_ext_torch: attention, mechanisms and guidance of this tree, for torch.

Its files are those of fairseq_ext beside this folder, under another name, so that both can be
installed.
"""

import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NAME, ROOT = "fairseq_ext_torch", Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fairseq_ext.interchange.carried_files import (  # noqa: E402
    VERSION,
    collect,
    find_file,
    find_license,
)

FOLDERS = ("attention", "mechanisms")
INIT = f'"""Attention mechanisms of fairseq_ext, for torch alone."""\n\n__version__ = "{VERSION}"\n'


class BuildRenamed(build_py):
    """Write the files of both folders and all they import, with the name of this package."""

    def run(self):
        source = ROOT / "fairseq_ext"
        paths = [path for folder in FOLDERS for path in sorted((source / folder).rglob("*.py"))]
        names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
        modules = [name.removesuffix(".__init__") for name in names]
        further = ["fairseq_ext.interchange", "fairseq_ext.interchange.hf_attention"]
        texts = {"__init__.py": INIT, "py.typed": "", "LICENSE": find_license()}
        for module, text in collect([*modules, *further], {}).items():
            texts[str(find_file(module).relative_to(source))] = text
        for name, text in texts.items():
            path = Path(self.build_lib, NAME, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(re.sub(r"\bfairseq_ext\b", NAME, text), "utf-8")


setup(
    name=NAME,
    version=VERSION,
    description="Attention mechanisms of fairseq_ext, for torch alone",
    license="MIT",
    python_requires=">=3.11,<3.14",
    packages=[NAME],
    package_dir={NAME: "."},
    cmdclass={"build_py": BuildRenamed},
    install_requires=["torch>=2.6,<2.16"],
    extras_require={"transformers": ["transformers>=5"]},
)
