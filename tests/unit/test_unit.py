from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_kit.unit import command_line, environment_line, value, word

# Whatever a process can be given: any Unicode text without NUL.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))

# tests/integration/test_unit_text.py lets systemd itself read such texts back.


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("--port", "--port"),
        ("30000", "30000"),
        ("/srv/models/Qwen3.6-27B", "/srv/models/Qwen3.6-27B"),
        ("a=b,c:d@e+f_g", "a=b,c:d@e+f_g"),
        ("", '""'),
        (" ", '" "'),
        (";", '";"'),
        ("#", '"#"'),
        ("a b", '"a b"'),
        ("it's", '"it\'s"'),
        ('{"a": 1}', r'"{\"a\": 1}"'),
        ("C:\\", r'"C:\\"'),
        (r"\n", r'"\\n"'),
        ("100%", '"100%%"'),
        ("%n%%i", '"%%n%%%%i"'),
        ("$HOME ${X} $$", '"$HOME ${X} $$"'),
        ("a\nb\tc\rd\x1be\x7ff", r'"a\x0ab\x09c\x0dd\x1be\x7ff"'),
        ("\n1", r'"\x0a1"'),
        ("größe 🚀\u00a0\u2028", '"größe 🚀\u00a0\u2028"'),
        ("~", '"~"'),
        ("*", '"*"'),
    ],
)
def test_words(text: str, written: str) -> None:
    assert word(text) == written


@given(TEXTS)
def test_a_word_never_leaves_its_line_nor_its_quotes(text: str) -> None:
    written = word(text)
    assert not set(written) & set(map(chr, range(32)))
    if written.startswith('"'):
        inner = written[1:-1].replace("\\\\", "").replace('\\"', "")
        assert '"' not in inner
        assert not inner.endswith("\\")
    else:
        assert written == text


@given(TEXTS, TEXTS)
def test_different_words_are_written_differently(one: str, other: str) -> None:
    assert (word(one) == word(other)) == (one == other)


def test_a_value_has_no_specifiers() -> None:
    assert value("SGLang 100%n ${X} 'a' \\") == "SGLang 100%%n ${X} 'a' \\"


def test_a_command_has_one_flag_with_its_values_a_line() -> None:
    assert command_line(
        ["/usr/bin/python3", "-m", "x", "--", "a", "--port", "1", "--bs", "1", "2", "--on"]
    ) == (":/usr/bin/python3 -m x \\\n  -- a \\\n  --port 1 \\\n  --bs 1 2 \\\n  --on")


def test_a_command_without_arguments() -> None:
    assert command_line(["/bin/true"]) == ":/bin/true"


@given(st.lists(TEXTS))
def test_no_line_of_a_command_is_a_comment_or_empty(arguments: list[str]) -> None:
    for line in command_line(["/bin/true", *arguments]).split("\n"):
        assert line.lstrip()[0] in ':-"'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("INFO", 'A="INFO"'),
        ("", 'A=""'),
        (" a b ", 'A=" a b "'),
        ("100% %n", 'A="100% %n"'),
        ('$X `x` "y" z\\', r'A="\$X \`x\` \"y\" z\\"'),
        ("it's # ; =", 'A="it\'s # ; ="'),
        ("a\nb\r\n", 'A="a\nb\r\n"'),
        ("größe 🚀", 'A="größe 🚀"'),
    ],
)
def test_variables(text: str, line: str) -> None:
    assert environment_line("A", text) == line


@given(TEXTS)
def test_a_variable_ends_where_its_text_ends(text: str) -> None:
    inner = environment_line("A", text)[3:-1].replace("\\\\", "").replace('\\"', "")
    assert '"' not in inner
    assert not inner.endswith("\\")
