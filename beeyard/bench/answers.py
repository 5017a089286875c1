"""
The Python module in a model's answer, found the same way every time; or the reason why there is none. Pure.

Code is what stands in fenced blocks, read by a CommonMark parser; without any block, an answer that is Python as a
whole. All Python blocks are joined in their order: models put a module and its tests into blocks of their own, and
say a better version after the first. Reasoning is no part of an answer. Of an answer whose tokens ran out inside the
code, the top-level statements that came whole are kept.
"""

import ast
import re
import sys
import warnings
from typing import NamedTuple

from markdown_it import MarkdownIt

from beeyard.catalog import Strict

# Characters; more is no module that was asked for.
LONGEST = 256 * 1024
PYTHON = re.compile(r"python[\d.-]*|py3?")
# Blocks that name no language, or a language that is none, are looked at and taken if they parse.
UNNAMED = {"", "code", "text", "txt", "plaintext"}
# How engines and templates write reasoning into an answer: its start and its end.
REASONING = (("<think>", "</think>"), ("<|channel>thought", "<channel|>"))
# Module names that mean something else than an answer.
TAKEN = {*sys.stdlib_module_names, "pytest", "answer"}
# What may be left of an answer that was cut, a try for each top-level line from its end on.
CUTS = 200


class Extracted(Strict):
    """
    A module as one source text, or None and why.

    ``reason`` says where the source was found, or why there is none. ``is_cut``: tokens ran out inside of the code;
    ``dropped_lines`` at its end were of no whole statement. ``other_names`` are what its own tests import it as.
    """

    source: str | None
    reason: str
    other_names: tuple[str, ...] = ()
    is_cut: bool = False
    dropped_lines: int = 0


class _Block(NamedTuple):
    language: str
    source: str
    is_closed: bool


def extract(answer: str, *, is_cut: bool = False) -> Extracted:
    """
    The module that an answer holds.

    :param answer: the text, with or without its reasoning
    :param is_cut: whether the answer ended because its tokens ran out (``finish_reason`` is ``length``)
    """
    if len(answer) > LONGEST:
        return _none(f"the answer has {len(answer)} characters, more than the {LONGEST} that a module may have")
    text, is_reasoning_open = without_reasoning(answer)
    if is_reasoning_open:
        return _none("the answer ends inside of its reasoning", is_cut=is_cut)
    if not text.strip():
        return _none("the answer is empty", is_cut=is_cut)
    blocks = _blocks(text)
    if not blocks:
        return _whole_text(text, is_cut)
    taken = [block for block in blocks if _is_python(block)]
    if not taken:
        named = ", ".join(sorted({block.language or "no language" for block in blocks}))
        return _none(f"none of its {_count(len(blocks), 'code block')} is Python ({named})", is_cut=is_cut)
    is_cut = is_cut and not taken[-1].is_closed and taken[-1] is blocks[-1]
    source = "\n\n".join(block.source.rstrip("\n") for block in taken) + "\n"
    where = _count(len(taken), "Python block")
    if not taken[-1].is_closed and not is_cut:
        where += ", the last one without its closing fence"
    return _checked(source, where, is_cut=is_cut)


def without_reasoning(answer: str) -> tuple[str, bool]:
    """
    The answer without what a model thought before it, and whether it ends inside of that.

    A template may have written the start of the reasoning itself, so an end without a start ends it, too. Markers
    further on, behind any other text, are the answer's own.
    """
    text = answer
    for start, end in REASONING:
        opened = text.lstrip().startswith(start)
        before, found, rest = text.partition(end)
        if opened and not found:
            return "", True
        if found and (opened or (start not in before and "```" not in before)):
            text = rest
    return text, False


def _blocks(text: str) -> list[_Block]:
    """Fenced blocks wherever CommonMark sees one: with backticks or tildes, longer fences, inside of lists."""
    lines = text.splitlines()
    found = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type != "fence" or token.map is None:
            continue
        first, after = token.map
        last = lines[after - 1] if 0 < after <= len(lines) else ""
        fence = re.escape(token.markup[0])
        is_closed = after - first > 1 and re.search(rf"{fence}{{{len(token.markup)},}}\s*$", last) is not None
        language = re.split(r"[\s:]", token.info.strip().lower())[0].strip("{}.")
        found.append(_Block(language, token.content, is_closed))
    return found


def _is_python(block: _Block) -> bool:
    if PYTHON.fullmatch(block.language):
        return bool(block.source.strip())
    if block.language not in UNNAMED:
        return False
    tree = _parsed(block.source)
    return isinstance(tree, ast.Module) and _defines(tree)


def _whole_text(text: str, is_cut: bool) -> Extracted:
    """An answer without any block: some prompts ask for nothing but code."""
    tree = _parsed(text)
    if isinstance(tree, ast.Module):
        if _defines(tree):
            return _found(text.strip("\n") + "\n", tree, "the whole answer is Python", is_cut)
        return _none("the answer defines no class or function", is_cut=is_cut)
    if is_cut:
        found = _checked(text, "the whole answer", is_cut=True)
        if found.source is not None:
            return found
    return _none(f"the answer has no code block, and is no Python as a whole ({tree})", is_cut=is_cut)


def _checked(source: str, where: str, *, is_cut: bool) -> Extracted:
    tree = _parsed(source)
    if isinstance(tree, ast.Module):
        if not tree.body:
            return _none(f"{where} says nothing but comments", is_cut=is_cut)
        return _found(source, tree, where, is_cut)
    if is_cut:
        lines = source.splitlines()
        starts = [number for number, line in enumerate(lines) if line and not line[0].isspace()]
        for number in starts[: -CUTS - 1 : -1]:
            kept = "\n".join(lines[:number]) + "\n"
            whole = _parsed(kept)
            if isinstance(whole, ast.Module) and _defines(whole):
                dropped = len(lines) - number
                reason = f"{where}, whose tokens ran out; its last {_count(dropped, 'line')} left out"
                return _found(kept, whole, reason, True, dropped)
        return _none(f"tokens ran out before {where} had a whole class or function", is_cut=True)
    return _none(f"{where} cannot be parsed: {tree}")


def _found(source: str, tree: ast.Module, reason: str, is_cut: bool, dropped: int = 0) -> Extracted:
    return Extracted(
        source=source, reason=reason, other_names=_other_names(tree), is_cut=is_cut, dropped_lines=dropped
    )  # fmt: skip


def _other_names(tree: ast.Module) -> tuple[str, ...]:
    """What the code calls itself where it imports, of a module that nobody has, names that it defines."""
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    named = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0 and {alias.name for alias in node.names} <= own
    }
    return tuple(sorted(name for name in named if name and name.isidentifier() and name not in TAKEN))


def _parsed(source: str) -> ast.Module | str:
    """The tree, or in some words why there is none. Parsing runs nothing of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _defines(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) for node in tree.body)


def _none(reason: str, *, is_cut: bool = False) -> Extracted:
    return Extracted(source=None, reason=reason, is_cut=is_cut)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
