"""Mutants of what readers see: examples, the reference, the README's table."""

from mutants.mutant import Mutant, python

MUTANTS = [
    Mutant(
        "example-shows-another-result",
        "python/hotloop/data/digits.py",
        "((1797, 64), 0)",
        "((1797, 64), 1)",
        python("tests/docs/test_examples.py::test_docstring"),
    ),
    Mutant(
        "example-of-a-page-does-not-run",
        "docs/semantics.md",
        "hl.train(model, data, max_epochs=1, loss=focal)",
        "hl.train(model, data, max_epochs=1, loss=focall)",
        python("tests/docs/test_examples.py::test_page"),
    ),
    Mutant(
        "reference-lacks-a-function",
        "docs/site.py",
        '["DataModule", "GraphDataModule", "load_digits"]',
        '["DataModule", "GraphDataModule"]',
        python("tests/docs/test_site.py::test_what_is_public_is_in_the_reference"),
    ),
    Mutant(
        "readme-lacks-a-metric",
        "README.md",
        "`rmse`, ",
        "",
        python("tests/docs/test_site.py::test_readme_lists_what_there_is"),
    ),
]
