"""Lines of keys, against files that a writer made."""

import tomllib
from typing import Any

import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from parl_mq.config.settings import Key, Origin, Setting, lines_of_keys, merge, settings_of_toml

NAMES = st.sampled_from(["a", "b", "long_name", "with space", "dotted.name", "ü"])
SCALARS = (
    st.integers(-5, 5)
    | st.booleans()
    | st.text("ab=[]#\"'\\\n\t ", max_size=8)
    | st.lists(st.integers(0, 9), max_size=3)
)
TABLES = st.recursive(
    st.dictionaries(NAMES, SCALARS, max_size=4), lambda inner: st.dictionaries(NAMES, SCALARS | inner, max_size=4)
)


def _leaves(value: Any, key: Key = ()) -> dict[Key, Any]:
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {leaf: said for name, inner in value.items() for leaf, said in _leaves(inner, (*key, name)).items()}


@settings(derandomize=True, deadline=None)
@given(table=TABLES.filter(bool), multiline=st.booleans())
def test_every_leaf_is_found_on_a_line_that_names_it(table: dict[str, Any], multiline: bool) -> None:
    text = tomli_w.dumps(table, multiline_strings=multiline)
    found = settings_of_toml(text, Origin("file", "f"))
    assert {setting.key: setting.value for setting in found} == _leaves(tomllib.loads(text))
    lines = text.split("\n")
    for setting in found:
        name = setting.key[-1]
        assert name in lines[int(setting.origin.place.removeprefix("f:")) - 1]


def test_line_is_where_the_statement_begins() -> None:
    text = 'a = 1\n\n[t]  # note\nb = [\n  1,\n]\n"c.d" = """\na = 2\n"""\nx.y = 3\n[u.v]\nw = {k = 1}\n[[z]]\nq = 1\n'
    assert lines_of_keys(text) == {
        ("a",): 1,
        ("t",): 3,
        ("t", "b"): 4,
        ("t", "c.d"): 7,
        ("t", "x", "y"): 10,
        ("u", "v"): 11,
        ("u", "v", "w", "k"): 12,
        ("z",): 13,
        ("z", "q"): 14,
    }


def test_later_setting_replaces_all_below_its_key() -> None:
    file, flag = Origin("file", "f"), Origin("flag", "--set")
    said = [Setting(("a", "b"), 1, file), Setting(("a", "c"), 2, file), Setting(("a",), {}, flag)]
    assert merge(said) == ({"a": {}}, {("a",): flag})
    assert merge([*said, Setting(("a", "c"), 3, flag)])[0] == {"a": {"c": 3}}
    assert merge([Setting(("a",), 1, file), Setting(("a", "b"), 2, flag)])[0] == {"a": {"b": 2}}
