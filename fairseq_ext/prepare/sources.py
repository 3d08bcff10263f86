"""Where corpora are to be had: addresses and checksums of their archives.

Checksums were taken from TensorFlow Datasets (WMT), Hugging Face's datasets (WMT mirrors, IWSLT15),
torchtext (IWSLT16) and projects that publish that of the IWSLT14 archive.
"""

from typing import NamedTuple

ARCHIVE = "https://web.archive.org/web/2022id_/"  # the Internet Archive's copy of an address


class Address(NamedTuple):
    """A place to download from; a mirror may pack the same files otherwise.

    Attributes:
        digest: sha256:… or md5:… of what is downloaded; empty where none is known.
        name: the file that it becomes.
    """

    url: str
    digest: str
    name: str


def copies(url: str, digest: str) -> list[Address]:
    """An address and the Internet Archive's copy of it."""
    name = url.rpartition("/")[2]
    return [Address(url, digest, name), Address(ARCHIVE + url, digest, name)]


def wmt(path: str, digest: str, mirror: str, mirrored: str) -> list[Address]:
    """An archive of statmt.org, and its copy (a .zip) on Hugging Face."""
    zipped = mirror.rpartition("/")[2]
    url = f"https://huggingface.co/datasets/wmt/{mirror}"
    return [*copies(path, f"sha256:{digest}"), Address(url, f"sha256:{mirrored}", zipped)]


_STANFORD = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
_MULTI30K = "multi30k/dataset/{}a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"


def _multi30k(name: str, digest: str) -> list[Address]:
    """GitHub's, and a copy of it on a content delivery network."""
    own = "https://raw.githubusercontent.com/" + _MULTI30K.format("")
    copy = "https://cdn.jsdelivr.net/gh/" + _MULTI30K.format("").replace("dataset/", "dataset@", 1)
    return [Address(f"{url}/{name}", f"sha256:{digest}", name) for url in (own, copy)]


_WIKITEXT = "wikitext-103-raw-v1.zip"
_FAIRSEQ = "https://dl.fbaipublicfiles.com/fairseq"
_GPT2 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
_OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

SOURCES: dict[str, list[Address]] = {
    "iwslt14": copies(
        f"{_FAIRSEQ}/data/iwslt14/de-en.tgz",
        "md5:10936dfdf616504ddbd844e91b94ef4a",
    ),
    "iwslt16": [  # two ways to one place: no other has it
        Address(
            f"https://drive.{place}1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8&export=download&confirm=t",
            "md5:c393ed3fc2a1b0f004b3331043f615ae",
            "2016-01.tgz",
        )
        for place in ("usercontent.google.com/download?id=", "google.com/uc?id=")
    ],
    **{
        f"iwslt15-{name}": copies(f"{_STANFORD}/{name}", f"sha256:{digest}")
        for name, digest in {
            "train.en": "c26dfeed74b6bf3752f5ca552f2412456f0de153f7c804df8717931fb3a5c78a",
            "train.vi": "707206edf2dc0280273952c7b70544ea8a1363aa69aaeb9d70514b888dc3067d",
            "tst2012.en": "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2",
            "tst2012.vi": "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0",
            "tst2013.en": "3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df",
            "tst2013.vi": "29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd",
        }.items()
    },
    "europarl-v7": wmt(
        "http://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        "wmt13/resolve/main-zip/training-parallel-europarl-v7.zip",
        "5b2d8b32c2396da739b4e731871c597fcc6e75729becd74619d0712eecf7770e",
    ),
    "commoncrawl": wmt(
        "http://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        "wmt13/resolve/main-zip/training-parallel-commoncrawl.zip",
        "5ffe980072ea29adfd84568d099bea366d9f72772b988e670794ae851b4e5627",
    ),
    "news-commentary-v9": wmt(
        "http://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        "wmt14/resolve/main-zip/training-parallel-nc-v9.zip",
        "ce199f93ec56ff480137ba29f0819f9a22e70d88be6d7458f112303d67d623d5",
    ),
    "news-commentary-v11": wmt(
        "http://data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz",
        "cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
        "wmt16/resolve/main-zip/translation-task/training-parallel-nc-v11.zip",
        "8e8b063120c37511a6207b7a4bda9a981efc7df7e1e3c319cfaba774a762af34",
    ),
    "news-commentary-v12": copies(
        "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        "sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
    ),
    "newstests": wmt(
        "http://data.statmt.org/wmt19/translation-task/dev.tgz",
        "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
        "wmt19/resolve/main-zip/translation-task/dev.zip",
        "d796e363740fdc4261aa6f5a3d2f8223e3adaee7d737b7724863325b8956dfd1",
    ),
    "wikitext-103": [
        Address(
            f"https://{place}/{_WIKITEXT}",
            "sha256:91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
            _WIKITEXT,
        )
        for place in (
            "wikitext.smerity.com",
            "huggingface.co/datasets/mattdangerw/wikitext-103-raw/resolve/main",
        )
    ],
    **{
        f"gpt2-{name}": [
            Address(f"{place}/{name}", f"sha256:{digest}", name)
            for place in (f"{_FAIRSEQ}/gpt2_bpe", _OPENAI)
        ]
        for name, digest in _GPT2.items()
    },
    "gpt2-dict.txt": copies(f"{_FAIRSEQ}/gpt2_bpe/dict.txt", ""),
    **{
        f"multi30k-{name}": _multi30k(name, digest)
        for name, digest in {
            "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
            "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
            "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
            "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
            "test_2016_flickr.en.gz": (
                "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"
            ),
            "test_2016_flickr.de.gz": (
                "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"
            ),
        }.items()
    },
}
