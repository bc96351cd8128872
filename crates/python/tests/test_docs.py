"""Every example in the documentation runs."""

import doctest
import importlib
import inspect
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[3]
MODULES = ["octavo", "octavo.attention", "octavo.kv_cache", "octavo.llm", "octavo.sampling"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_every_module_run(name):
    failed, tried = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert failed == 0 and tried > 0


def test_the_documents_examples_run():
    text = (ROOT / "docs" / "python.md").read_text()
    # A fence would be taken for output.
    text = "\n".join("" if line.startswith("```") else line for line in text.splitlines())
    parsed = doctest.DocTestParser().get_doctest(text, {}, "docs/python.md", "docs/python.md", 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(parsed)
    assert runner.failures == 0 and runner.tries > 50


def test_every_public_name_is_documented():
    for name in [*MODULES, "octavo.outputs", "octavo.streams"]:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            thing = getattr(module, public)
            if public.startswith("__"):
                continue
            assert thing.__doc__, f"{name}.{public}"
            methods = vars(thing).items() if isinstance(thing, type) else ()
            for method, value in methods:
                named = callable(value) or inspect.isdatadescriptor(value)
                if not method.startswith("_") and named:
                    assert value.__doc__, f"{name}.{public}.{method}"
