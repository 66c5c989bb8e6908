"""A calculator: reads one line of JSON, {"expression": "0.1 + 0.2"}, and answers with one, {"value": "0.3"}.

It counts in fractions, and so its answers are exact. With --float it counts in binary floating point, as most do.
A mistake in the expression ends it with status 1 and one line on standard error.
"""

from __future__ import annotations

import ast
import json
import operator
import sys
from collections.abc import Callable
from fractions import Fraction

EXPONENT_MAX = 1000
OPERATORS: dict[type[ast.operator], Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def calculate(expression: str, *, number: type) -> str:
    """The value of an expression of numbers, + - * / ** and brackets, counted in ``number``."""

    def value(node: ast.AST):
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant):
            return number(ast.get_source_segment(expression, node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            first, second = value(node.left), value(node.right)
            if isinstance(node.op, ast.Pow) and abs(second) > EXPONENT_MAX:
                raise ValueError(f"the exponent is greater than {EXPONENT_MAX}")
            return OPERATORS[type(node.op)](first, second)
        raise ValueError("only numbers, + - * / ** and brackets are understood")

    return written(value(ast.parse(expression, mode="eval")))


def written(value: Fraction | float) -> str:
    """A decimal where there is an exact one that is short, else a fraction."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    for places in range(30):
        shifted = value * 10**places
        if shifted.denominator == 1:
            digits = str(abs(shifted.numerator)).rjust(places + 1, "0")
            sign = "-" if value < 0 else ""
            return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)
    return str(value)


def main() -> None:
    number = float if "--float" in sys.argv[1:] else Fraction
    try:
        value = calculate(json.loads(sys.stdin.readline())["expression"], number=number)
    except (ValueError, KeyError, SyntaxError, ArithmeticError, TypeError) as error:
        sys.exit(f"cannot calculate this: {error}")
    print(json.dumps({"value": value}))


if __name__ == "__main__":
    main()
