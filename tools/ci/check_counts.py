"""What the output of a suite says: (passed, failed, skipped), or None where it does not say it in a form known here."""
import re
import xml.etree.ElementTree as xml

# Newer releases of cmocka (1.1.7, not 1.1.5) put the group's name before totals: "[==========] tests: 3 test(s) run."
GROUP = r"(?:[^\n:]+: )?"


def cmocka(text):
    """The totals must add up to the number of tests run; a program with several groups has totals for each."""
    def total(expression):
        return sum(int(n) for n in re.findall(expression, text, re.M))

    announced = total(rf"^\[=+\] {GROUP}Running (\d+) test\(s\)\.$")
    run = total(rf"^\[=+\] {GROUP}(\d+) test\(s\) run\.$")
    passed = total(rf"^\[\s+PASSED\s+\] {GROUP}(\d+) test\(s\)\.$")
    failed = total(rf"^\[\s+FAILED\s+\] {GROUP}(\d+) test\(s\), listed below:$")
    skipped = total(rf"^\[\s+SKIPPED\s+\] {GROUP}(\d+) test\(s\), listed below:$")
    errors = len(re.findall(r"^\[\s+ERROR\s+\] (?!---)\S+$", text, re.M))  # a test's own setup failed; no total counts it
    if not run or announced != run or run != passed + failed + skipped + errors:
        return None
    return passed, failed + errors, skipped


def pytest(report):
    """report: text of the file that --junitxml names."""
    try:
        suites = list(xml.fromstring(report).iter("testsuite"))
        passed = failed = skipped = 0
        for suite in suites:
            n = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
            failed += n["failures"] + n["errors"]
            skipped += n["skipped"]
            passed += n["tests"] - n["failures"] - n["errors"] - n["skipped"]
    except (xml.ParseError, KeyError, ValueError):
        return None
    return (passed, failed, skipped) if suites else None


def fuzz(text):
    """Runs of a libFuzzer target, or None."""
    runs = re.findall(r"^Done (\d+) runs", text, re.M)
    return int(runs[-1]) if runs and int(runs[-1]) > 0 else None


def script(text):
    """A script of tools/ that ends in "N passed, N failed[, N skipped]"."""
    last = re.search(r"(?:^|\n)(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\n*\Z", text)
    return tuple(int(n or 0) for n in last.groups()) if last else None
