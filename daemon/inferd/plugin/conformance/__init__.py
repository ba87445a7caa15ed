"""Conformance kit: does a plugin do what its contract says?

`check(spec)` runs every check of the plugin's kind against a float64 oracle of the kit's own and
returns a `Report`. `inferd plugins check NAME` prints it; a plugin's own test suite asserts it:

    from inferd.plugin.conformance import check
    assert check(MY_SPEC).ok
"""

from inferd.plugin.conformance.check import check, names
from inferd.plugin.conformance.report import Report, Result

__all__ = ["Report", "Result", "check", "names"]
