"""Run fairseq's own tests twice, without and with the plugin, and compare what fails.

The tests are those of a clone; the fairseq that they test is the installed one. With the plugin,
`fairseq_ext.registry` is imported before anything else, so that all of its patches are made. Tests
that need a GPU are left out, and those of several processes. The result is a table in Markdown: how
many tests pass and fail each way, and those that only one of the two fails.

Example:
  python tests/fairseq_suite.py ../fairseq
  python tests/fairseq_suite.py ../fairseq --out table.md -- tests/test_train.py -k iterator
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

LEFT_OUT = ["tests/gpu", "tests/distributed"]
WAYS = {"without": [], "with": ["-p", "fairseq_ext.registry"]}
PYTEST = (
    "-q --continue-on-collection-errors -p no:cacheprovider -p no:randomly "
    "--junitxml results.xml -o junit_family=xunit1"
)
FAILS = {"failure", "error"}
LENGTH = 160  # of a reason
PLACES = re.compile(r"/\S*/|0x[0-9a-f]+")  # what differs from run to run

Results = Mapping[str, tuple[str, str]]
"""Test -> passed, failure, error or skipped, and the first line of the reason."""


def main() -> None:
    parser = argparse.ArgumentParser(
        usage="%(prog)s CLONE [--out FILE] [-- PYTEST ARGUMENT...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("clone", type=Path, metavar="CLONE", help="of fairseq, with tests/")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table there")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args, chosen = parser.parse_args(words[:at]), words[at + 1 :] or ["tests"]
    if not (args.clone / "tests" / "test_train.py").is_file():
        sys.exit(f"{args.clone} has no tests/test_train.py; give a clone of fairseq")
    results = {way: run(args.clone.resolve(), chosen, way) for way in WAYS}
    table = compare(results["without"], results["with"])
    print(table, end="")
    if args.out:
        args.out.write_text(table, "utf-8")
    sys.exit(any(find_only(results["with"], results["without"])))


def run(clone: Path, chosen: Sequence[str], way: str) -> Results:
    """Run tests where the clone's own package, which is not built, is not found."""
    with tempfile.TemporaryDirectory(prefix="fairseq-tests-") as name:
        folder = Path(name)
        for part in clone.iterdir():
            if part.name not in ("fairseq", "fairseq_cli", ".git"):
                (folder / part.name).symlink_to(part)
        command = [sys.executable, "-m", "pytest", *PYTEST.split(), *WAYS[way]]
        command += [f"--ignore={path}" for path in LEFT_OUT]
        print(f"{way} the plugin: {' '.join(chosen)}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [*command, *chosen],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": f"{folder}:{Path(__file__).parent.parent}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        results = folder / "results.xml"
        if not results.exists():
            sys.exit(f"pytest did not come to its end {way} the plugin:\n{done.stdout[-3000:]}")
        return read_results(results)


def read_results(path: Path) -> Results:
    """Return the results that pytest wrote as JUnit's XML."""
    found = {}
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        outcome = next((part for part in case if part.tag in (*FAILS, "skipped")), None)
        reason = "" if outcome is None else (outcome.get("message") or outcome.text or "")
        line = PLACES.sub("", " ".join(reason.split())[:LENGTH])
        found[name] = ("passed" if outcome is None else outcome.tag, line)
    return found


def find_only(one: Results, other: Results) -> dict[str, str]:
    """Return tests that fail in `one` and not in `other`, with the reason."""
    return {
        test: reason
        for test, (outcome, reason) in one.items()
        if outcome in FAILS and other.get(test, ("absent", ""))[0] not in FAILS
    }


def compare(without: Results, with_plugin: Results) -> str:
    """Return the table of both runs, and lists of what fails."""
    counts = {"without": without, "with": with_plugin}
    lines = ["| plugin | tests | passed | failed | skipped |", "|---|---|---|---|---|"]
    for way, results in counts.items():
        total = Counter("failed" if o in FAILS else o for o, _ in results.values())
        row = [way, len(results), total["passed"], total["failed"], total["skipped"]]
        lines.append(f"| {' | '.join(map(str, row))} |")
    fail_both = find_failing(without) & find_failing(with_plugin)
    for title, tests in {
        "Fails with the plugin alone": find_only(with_plugin, without),
        "Fails without it alone": find_only(without, with_plugin),
        "Fails both ways": {test: with_plugin[test][1] for test in fail_both},
    }.items():
        lines += ["", f"{title}: {'' if tests else 'nothing.'}".rstrip()]
        lines += [""] * bool(tests) + list(describe(tests))
    return "".join(f"{line}\n" for line in lines)


def describe(tests: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each test, without its parameters, and a reason."""
    cases = defaultdict(list)
    for test, reason in sorted(tests.items()):
        cases[test.partition("[")[0].removeprefix("tests.")].append(reason)
    for test, reasons in cases.items():
        count = f" ({len(reasons)} cases)" if len(reasons) > 1 else ""
        yield f"- `{test}`{count}: {reasons[0]}"


def find_failing(results: Results) -> set[str]:
    return {test for test, (outcome, _) in results.items() if outcome in FAILS}


if __name__ == "__main__":
    main()
