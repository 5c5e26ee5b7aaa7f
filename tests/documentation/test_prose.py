"""Documents, help texts, and the comments, texts and names in the sources keep to CONTRIBUTING, "Style".

Exempt are NSQD-COMPAT.md, code, and words in backquotes.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from markdown_it.token import Token

from documentation.markdown import DOCS, PAGES, ROOT, parse, tokens
from documentation.writers import load_writer
from gnsqd.options import OPTIONS

# What is not to be written, and what to write instead.
PATTERNS = {
    r"\b(?:told|tells?|telling)\b": "reports, specifies, returns, logs",
    r"(?<!/)\b(?:says?|said)\b": "reports, specifies, contains",
    r"\b(?:wants|wanted)\b": "needs, requires",
    r"\banew\b": "again",
    r"\bas ever\b": "as before",
    r"\bby turns\b": "in turn",
    r"\bso many\b": "that many",
    r"\bwhat waits\b": "queued messages",
    r"(?<!\bthere )\b(?:is|are) no (?!(?:more|less|fewer|longer|larger|higher|lower|other)\b)[a-z]+": "is not a",
    r"\bthose (?:that|who|which)\b": "a noun",
    r"\bbut for\b": "except",
    r"\b(?:un)?mend(?:s|ed|ing)?\b": "corrects, fixes",
    r", too(?=[,.;:)]|$)": "also",
    r"\b(?:has|have) (?:not|n't) (?:got|any|a|the)\b": "lacks, does not have",
}
# In tests, which describe what each side says.
IN_TESTS = {pattern: better for pattern, better in PATTERNS.items() if "said" not in pattern}
# The first word of a function's docstring is a verb, of other docstrings at least no word of these.
VERB = re.compile(r"True if |(?!Always|Bytes|Channels|Clients|Its|Messages|Seconds|This|Topics)[A-Z][a-z]*[^s]s\b")
NO_SENTENCE = re.compile(r"(?:As|How|Like|Of|What|When|Where|Whether|Which|Who|Why)\b")
NO_SUMMARY = re.compile(r"property|command\(|click\.group")  # decorators of a value, and of a command, whose help it is
COLUMNS = 85  # of a line of code that the site shows without cutting it off

SOURCES = [
    path
    for folder in ("gnsqd", "nsqadmin_cli", "contrib", "tools", "tests", ".ci")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
]
WRITTEN = [page for page in PAGES if page != DOCS / "NSQD-COMPAT.md"]

each_page = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.stem))


def by_hand(all_tokens: list[Token]) -> Iterator[Token]:
    """Yields those outside `<!-- NAME -->` ... `<!-- end of NAME -->` or `<!-- /NAME -->`, which programs write."""
    names = {name for token in all_tokens for name in re.findall(r"<!-- (?:end of |/)(.+?) -->", token.content)}
    inside = False
    for token in all_tokens:
        mark = re.fullmatch(r"<!-- (?:options of )?(.+?) -->\s*", token.content) if token.type == "html_block" else None
        if mark and mark[1] in names:
            inside = True
        elif mark and re.match("end of |/", mark[1]):
            inside = False
        elif not inside:
            yield token


def uses(text: str, patterns: Mapping[str, str] = PATTERNS) -> list[str]:
    """Returns each use of such a word in running text."""
    words = ((use[0], better) for pattern, better in patterns.items() for use in re.finditer(pattern, text, re.I))
    return [f"{word!r}, write: {better}" for word, better in words]


def findings(all_tokens: list[Token]) -> list[str]:
    """Returns each use of such a word with its line, which in a table is at worst that of the row before."""
    every_use = []
    line = 1
    for token in all_tokens:
        line = token.map[0] + 1 if token.map else line
        text = "".join(
            {"text": child.content, "softbreak": " ", "code_inline": "`"}.get(child.type, "")
            for child in token.children or ()
        )
        every_use += [f"{line}: {use}" for use in uses(text)]
    return every_use


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yields comments, as paragraphs, and strings of several words (docstrings, messages, log lines), by line."""
    first = last = 0
    paragraph: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if paragraph and line > last + 1:
                yield first, " ".join(paragraph)
                paragraph = []
            first, last = first if paragraph else line, line
            paragraph.append(token.string.lstrip("#: "))
    yield first, " ".join(paragraph)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, " ".join(node.value.split())


def findings_in_source(source: str, patterns: Mapping[str, str] = PATTERNS) -> list[str]:
    texts = ((line, re.sub(r"`[^`]*`", "`", text)) for line, text in texts_of(source))
    return [f"{line}: {use}" for line, text in texts for use in uses(text, patterns)]


def findings_in_names(source: str, patterns: Mapping[str, str] = PATTERNS) -> list[str]:
    every_use = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                every_use += [f"{node.lineno}: {name}: {use}" for use in uses(name.replace("_", " "), patterns)]
    return every_use


def findings_in_docstrings(source: str) -> list[str]:
    no_sentences = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            decorators = "" if isinstance(node, ast.Module) else " ".join(map(ast.unparse, node.decorator_list))
            must_begin = isinstance(node, ast.FunctionDef) and not NO_SUMMARY.search(decorators)
            if NO_SENTENCE.match(text) or (must_begin and not VERB.match(text)):
                line = getattr(node, "lineno", 1)
                no_sentences.append(f"{line}: {text[:50]!r}, begin with a verb, or for a value a noun")
    return no_sentences


def in_page(text: str) -> list[str]:
    return findings(parse(text))


@each_page
def test_page_uses_plain_words(page: Path) -> None:
    assert findings(tokens(page)) == []


def test_help_uses_plain_words() -> None:
    texts = {f"gnsqd --{option.flag}": option.help for option in OPTIONS if option.ours}
    for words, command in load_writer("write_gnsqadmin").all_commands().items():
        texts[words] = f"{command.help}\n{command.document}"
        texts |= {f"{words} {param.name}": getattr(param, "help", None) or "" for param in command.params}
    assert [(where, use) for where, text in texts.items() for use in uses(text)] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_comments_and_texts_of_sources_use_plain_words(source: Path) -> None:
    patterns = IN_TESTS if source.is_relative_to(ROOT / "tests") else PATTERNS
    text = source.read_text("utf-8")
    assert [*findings_in_source(text, patterns), *findings_in_names(text, patterns)] == []
    assert findings_in_docstrings(text) == []


@pytest.mark.parametrize(
    "find, text, count",
    [
        (in_page, "Clients are told version 1.3.0.", 1),
        (in_page, "It goes to the queue as\never.", 1),
        (in_page, "Such a test wants a daemon. What waits is on disk.", 2),
        (in_page, "| a |\n|---|\n| X is no number |\n", 1),
        (in_page, "It is no longer needed. There is no limit. They are no more than two.", 0),
        (in_page, "Use it if you want a [daemon](wants.md).", 0),
        (in_page, "The word is `told`.\n\n    it tells\n\n```text\nwants\n```\n", 0),
        (findings_in_source, "x = 1  # as the caller wants it\n", 1),
        (findings_in_source, "# It is kept as\n# ever.\n", 1),
        (findings_in_source, '"""Tells what waits."""\n', 2),
        (findings_in_source, 'raise ValueError(f"{name} is no number")\n', 1),
        (findings_in_source, "told = wanted = 1  # `told` is code\n", 0),
        (findings_in_source, 'flags = {"wants", "told"}\n', 0),
        (findings_in_names, "told = so_many = 1\ndef test_but_for(wanted): self.tells = told()\n", 5),
        (findings_in_names, "import wanted\nprint(told, self.tells, mends='told')\n", 0),
        (findings_in_docstrings, 'def f():\n    """The number."""\nclass C:\n    """Of one."""\n', 2),
        (findings_in_docstrings, '"""A module."""\ndef f():\n    """Returns it."""\n', 0),
        (findings_in_docstrings, 'class C:\n    @property\n    def f(self):\n        """The number."""\n', 0),
    ],
)
def test_the_checker_finds_such_words(find: Callable[[str], list[str]], text: str, count: int) -> None:
    assert len(find(text)) == count


@each_page
def test_code_is_not_cut_off(page: Path) -> None:
    wide = [
        line
        for token in tokens(page)
        if token.type in ("fence", "code_block")
        for line in token.content.splitlines()
        if len(line) > COLUMNS
    ]
    assert wide == []


@each_page
def test_shell_blocks_wait_for_the_daemon_that_they_start(page: Path) -> None:
    """Lets them be pasted as a whole."""
    for token in by_hand(tokens(page)):
        if token.type == "fence" and token.info.strip() == "shell":
            lines = token.content.splitlines()
            after = [lines[number + 1 :][:1] for number, line in enumerate(lines) if line.endswith(" &")]
            assert all(line and re.match(r" *until (curl|gnsqadmin) ", line[0]) for line in after), token.content
