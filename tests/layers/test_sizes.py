"""Files and functions stay short enough to be read at one sitting."""

from tests.layers import sizes
from tests.layers.source import python_sources, snippet


def test_files_and_functions_keep_to_their_limits() -> None:
    table = sizes.report(python_sources())
    assert not table, table


def _function(num_lines: int, docstring: str = "") -> str:
    return f"def long_one():\n{docstring}" + "    x = 1\n" * (num_lines - 1)


def test_a_long_function_is_found() -> None:
    assert "61 of  60" in sizes.report([snippet(_function(61))])


def test_a_docstring_does_not_count() -> None:
    docstring = '    """First.\n\n    More.\n    """\n'
    assert sizes.report([snippet(_function(60, docstring))]) == ""


def test_a_long_file_is_found() -> None:
    assert "401 of 400" in sizes.report([snippet("x = 1\n" * 401)])
    assert sizes.report([snippet("x = 1\n" * 400)]) == ""
