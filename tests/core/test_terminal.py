"""Control characters of messages."""

import io

import pytest
from tqdm import tqdm

from raybio.core.terminal import PrintableStream, printable, stream_of_data


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x00 \x07 \x08 \x0b \x0c \x0d \x7f", r"\x00 \x07 \x08 \x0b \x0c \x0d \x7f"),
        ("\x9b2J", r"\x9b2J"),
        ("tab\tand\nlines, naïve, 蛋白质, …", "tab\tand\nlines, naïve, 蛋白质, …"),
    ],
    ids=["escape", "c0", "c1", "text"],
)
def test_control_characters_except_tab_and_newline_are_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_stream_shows_them_however_they_are_written() -> None:
    below = io.StringIO()
    stream = PrintableStream(below)
    assert stream.write("a\x1b[2Jb\rc") == 8
    stream.writelines(["\x1bd", "\x1be"])
    print("\r\x1b[2Jf", file=stream)
    assert below.getvalue() == "a\\x1b[2Jb\\x0dc\\x1bd\\x1be\\x0d\\x1b[2Jf\n"


def test_progress_bars_of_downloads_still_move() -> None:
    below, expected = Terminal(), Terminal()
    for file in (PrintableStream(below), expected):
        # Without times, which would differ.
        form = {"bar_format": "{desc}: {bar} {n_fmt}/{total_fmt}", "mininterval": 0, "ncols": 60}
        with tqdm(total=2, desc="all", file=file, **form) as outer:
            for name in ("config.json", "model.safetensors"):
                with tqdm(total=3, desc=name, file=file, leave=False, **form) as inner:
                    inner.update(1)
                    inner.update(2)
                outer.update(1)
    assert "\x1b[A" in expected.getvalue() and "\r" in expected.getvalue()
    assert below.getvalue() == expected.getvalue()


def test_the_reset_of_colors_at_the_end_of_a_process_is_not_shown() -> None:
    """The colorama that comes with Ray writes it to every terminal."""
    below = Terminal()
    PrintableStream(below).write("\x1b[0m")
    assert below.getvalue() == "\x1b[0m"


def test_data_are_exact_unless_a_terminal_shows_them() -> None:
    for below, exact in ((io.StringIO(), True), (Terminal(), False)):
        stream_of_data(PrintableStream(below)).write("id\x1b[31m\n")
        assert below.getvalue() == ("id\x1b[31m\n" if exact else "id\\x1b[31m\n")
    plain = io.StringIO()
    assert stream_of_data(plain) is plain
