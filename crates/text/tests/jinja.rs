//! Jinja as `jinja2` has it, where this engine by itself would do otherwise.

mod common;

use common::{rendered, template};
use octavo_text::{ChatInput, Message};

/// Each template prints what stands beside it, which is what `jinja2` prints.
fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(rendered(source), *expected, "{source}");
    }
}

#[test]
fn what_can_be_looped_over_and_what_has_places_is_told_apart() {
    check(&[
        (
            "{{ none is iterable }}{{ nope is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}",
            "FalseTrueTrueFalse",
        ),
        ("{{ none is sequence }}{{ nope is sequence }}{{ 1 is sequence }}", "FalseTrueFalse"),
        (
            "{{ 'a' is sequence }}{{ {} is sequence }}{{ (1,) is sequence }}{{ [1][0:] is sequence }}",
            "TrueTrueTrueTrue",
        ),
        (
            "{{ raise_exception is callable }}{{ range is callable }}{{ namespace is callable }}",
            "TrueTrueTrue",
        ),
        (
            "{{ none is callable }}{{ 'a' is callable }}{{ {} is callable }}{{ [1] is callable }}",
            "FalseFalseFalseFalse",
        ),
    ]);
}

#[test]
fn an_engine_that_panics_is_an_error_of_the_template() {
    let broken = template("{% for message in messages[::-1] %}{{ message.role }}{% endfor %}");
    let error = broken.render(&ChatInput::new(&[])).unwrap_err();
    assert!(
        error.to_string().starts_with("the model's chat template makes the template engine panic: "),
        "{error}"
    );
    // The next conversation finds everything in order.
    let turns = [Message::new("user", "a"), Message::new("assistant", "b")];
    assert_eq!(broken.render(&ChatInput::new(&turns)).unwrap(), "assistantuser");
    assert!(template("{{ ''[::-1] }}").render(&ChatInput::new(&[])).is_err());
}

#[test]
fn every_kind_of_line_end_is_a_new_line() {
    check(&[
        ("a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc", "a\nb\nc"),
        ("a\rb{% if true %}\rc{% endif %}", "a\nbc"),
        ("{{ 'a\r\nb' }}", "a\nb"),
    ]);
}

#[test]
fn floats_are_printed_as_python_prints_them() {
    check(&[
        ("{{ 1e16 }} {{ 1e-7 }} {{ 1.0 }} {{ 0.1 }} {{ 3 }}", "1e+16 1e-07 1.0 0.1 3"),
        (
            "{{ [1e16, {'a': 1e-7}, (1e22,), none, 'x', 1.5] }}",
            "[1e+16, {'a': 1e-07}, (1e+22,), None, 'x', 1.5]",
        ),
        ("{{ 1e16|string }} {{ [1e16]|string }} {{ 'é'|string }}", "1e+16 [1e+16] é"),
        ("{{ {'a': 1e16} }} {{ {1e16: 'a'} }}", "{'a': 1e+16} {1e+16: 'a'}"),
        ("{{ 1e308 * 10 }} {{ -1e308 * 10 }}", "inf -inf"),
    ]);
}

#[test]
fn strings_have_the_methods_of_pythons() {
    check(&[
        ("{{ 'abc'.removeprefix('a') }}{{ 'abc'.removeprefix('b') }}", "bcabc"),
        ("{{ 'abc'.removesuffix('c') }}{{ 'abc'.removesuffix('b') }}", "ababc"),
        ("{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b  c'.rsplit(none, 1) }}", "['a,b', 'c'][' a b', 'c']"),
        ("{{ ' a b  c '.rsplit() }}{{ 'a,b'.rsplit(',') }}{{ ''.rsplit() }}", "['a', 'b', 'c']['a', 'b'][]"),
        ("{{ 'abc'.partition('b') }}{{ 'ab'.partition('x') }}", "('a', 'b', 'c')('ab', '', '')"),
        ("{{ 'abcb'.rpartition('b') }}{{ 'ab'.rpartition('x') }}", "('abc', 'b', '')('', '', 'ab')"),
        ("{{ 'éab'.index('b') }}", "2"),
        ("{{ '7'.zfill(3) }}{{ '-5'.zfill(4) }}{{ '+5'.zfill(4) }}{{ 'long'.zfill(2) }}", "007-005+005long"),
        ("{{ 'é'.ljust(3) }}|{{ 'x'.rjust(3, '-') }}|{{ 'x'.ljust(0) }}", "é  |--x|x"),
        (
            "{{ 'abc'.center(6, '*') }}|{{ 'abc'.center(8, '*') }}|{{ 'ab'.center(5, '*') }}",
            "*abc**|**abc***|**ab*",
        ),
    ]);
    let error = template("{{ 'a'.index('b') }}").render(&ChatInput::new(&[])).unwrap_err().to_string();
    assert!(error.contains("substring not found"), "{error}");
    let error = template("{{ 'a'.partition('') }}").render(&ChatInput::new(&[])).unwrap_err().to_string();
    assert!(error.contains("empty separator"), "{error}");
    let error =
        template("{{ 'a'.ljust(99999999999) }}").render(&ChatInput::new(&[])).unwrap_err().to_string();
    assert!(error.contains("too wide"), "{error}");
}

#[test]
fn filters_take_the_arguments_of_jinjas() {
    check(&[
        ("{{ ''|default('x', boolean=true) }}{{ ''|default('x', true) }}{{ ''|default('x') }}|", "xx|"),
        (
            "{{ nope|default }}|{{ nope|d('x') }}{{ nope|default(default_value='y') }}{{ 0|d(1, boolean=false) }}",
            "|xy0",
        ),
        (
            "{{ 'aXaX'|replace('X', 'b', 1) }}{{ 'aXaX'|replace('X', 'b', count=1) }}{{ 'aXaX'|replace('X', 'b') }}",
            "abaXabaXabab",
        ),
        ("{{ 33|replace('3', '4') }}", "44"),
        ("{{ nope|length }}{{ nope|count }}{{ 'é'|length }}{{ [1, 2]|count }}", "0012"),
        ("{{ {'a': [1, {}]}|tojson(indent='\\t') }}", "{\n\t\"a\": [\n\t\t1,\n\t\t{}\n\t]\n}"),
        ("{{ {'a': 1}|tojson(indent=2) }}{{ 'é'|tojson(true) }}", "{\n  \"a\": 1\n}\"\\u00e9\""),
    ]);
    for source in [
        "{{ 1|default(2, nope=3) }}",
        "{{ 'a'|replace('a', 'b', nope=3) }}",
        "{{ 1|tojson(nope=3) }}",
        "{{ nope|tojson }}",
    ] {
        assert!(template(source).render(&ChatInput::new(&[])).is_err(), "{source}");
    }
}
