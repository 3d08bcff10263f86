"""Failures of tests, named at once: a run that is stopped from outside sums nothing up."""

LONG = 120  # seconds, after which a test is named, too


class NamedAtOnce:
    """A plugin of pytest that names what fails, or takes long, when it ends."""

    def __init__(self, config):
        self.config = config

    def pytest_runtest_logreport(self, report):
        if not report.failed and report.duration < LONG:
            return
        last = report.longreprtext.splitlines()[-12:] if report.failed else []
        line = f"\n{report.outcome} {report.nodeid} ({report.when}, {report.duration:.0f} s)"
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        terminal.write_line("\n".join([line, *last]))
