"""What tokens cost: prices by model and class of tokens, of a stated day, as integers of nano-USD, rounded up.

A model without a price, and a class that was used and has none, give no cost: it is unknown and never zero. A price of
``"0"`` is one. Prices do not change an answer, so they are no part of a run's identity.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Final, Literal

import attrs
from pydantic import BeforeValidator, Field, model_validator

from ..ledger.canonical import JsonValue, digest_of_value
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import USAGE_MAX, Usage
from ..runner.token_classes import TOKENS_IN, TOKENS_OUT, TokenClass, known_classes
from .outcomes import one_line
from .tables import Table, read_table

__all__ = ["Amount", "DispatchBound", "ModelPrices", "PriceTable", "PricesTable", "cost_of", "read_prices"]

_AMOUNT: Final = re.compile(r"\d{1,7}(\.\d{1,9})?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
# Vendors charge reasoning as what comes out.
_AS: Final[Mapping[TokenClass, TokenClass]] = {TokenClass.REASONING: TokenClass.OUTPUT}


def an_amount(text: object) -> str:
    """The text, if it is an amount of US dollars; raises ValueError."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f'money is never a float; write it in quotes: "{text}"')
    if not isinstance(text, str) or not _AMOUNT.fullmatch(text):
        raise ValueError(f'a price is decimal text such as "0.15", not "{one_line(str(text), length_max=40)}"')
    return text


def a_day(text: object) -> str:
    """The text of a day (a TOML date, too); raises ValueError."""
    if isinstance(text, dt.date) and not isinstance(text, dt.datetime):
        return text.isoformat()
    try:
        if isinstance(text, str) and _DAY.fullmatch(text):
            dt.date.fromisoformat(text)
            return text
    except ValueError:
        pass
    raise ValueError(f'a day is text such as "2026-11-01", not "{one_line(str(text), length_max=40)}"')


Amount = Annotated[str, BeforeValidator(an_amount)]
Day = Annotated[str, BeforeValidator(a_day)]


class ModelPrices(Table):
    """What a million tokens of one model cost, by class; a class without a price has none."""

    input: Amount | None = Field(None, description='Of tokens that go in, in US dollars for a million: "0.15".')
    cache_read: Amount | None = Field(None, description="Of those that the endpoint had in its cache.")
    cache_write: Amount | None = Field(None, description="Of those that were written to a cache for minutes.")
    cache_write_long: Amount | None = Field(None, description="Of those that were written to a cache for an hour.")
    audio_input: Amount | None = Field(None, description="Of sound that goes in.")
    output: Amount | None = Field(None, description="Of tokens that come out.")
    reasoning: Amount | None = Field(None, description="Of reasoning; as `output` if absent, as vendors charge it.")
    audio_output: Amount | None = Field(None, description="Of sound that comes out.")
    from_day: Day | None = Field(None, alias="from", description="The first day of these prices, UTC.")
    tokens_in_max: int | None = Field(
        None, ge=1, le=USAGE_MAX, description="The most tokens in of one request at these prices; no limit if absent."
    )
    aliases: list[str] = Field([], description="Other names of the model.")

    @model_validator(mode="after")
    def _has_a_price(self) -> ModelPrices:
        if all(getattr(self, one.value) is None for one in TokenClass):
            raise ValueError("no class of tokens has a price; write input and output, as decimal text")
        return self

    def price(self, token_class: TokenClass) -> Decimal | None:
        """US dollars for a million tokens of the class."""
        told = getattr(self, token_class.value)
        if told is None and token_class in _AS:
            told = getattr(self, _AS[token_class].value)
        return None if told is None else Decimal(told)


class PricesTable(Table):
    """A price file, or the table ``prices`` of a work order."""

    version: Literal[1] = Field(1, description="Version of the form.")
    as_of: Day = Field(description='The day that the prices are of: "2026-11-01".')
    currency: Literal["USD"] = Field("USD", description="No other can be written.")
    source: str | None = Field(None, description="Where they were read, for people.")
    file: str | None = Field(None, description="Written by tallystick into the ledger: the file that had them.")
    models: dict[str, ModelPrices | list[ModelPrices]] = Field(
        description="By name of the model; a list where they change from a day on, or with the size of a request."
    )


@attrs.frozen
class DispatchBound:
    """The most that one dispatch can use; ``nanousd`` is None where that has no price."""

    tokens_in: int
    tokens_out: int
    nanousd: int | None

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out


def cost_of(prices: ModelPrices, usage: Usage) -> int | str:
    """The cost in nano-USD, rounded up, or why it is unknown."""
    if usage.besides:
        return f"{', '.join(usage.besides)} was used, which no price of tokens covers"
    for side, total, what in ((TOKENS_IN, usage.tokens_in, "in"), (TOKENS_OUT, usage.tokens_out, "out")):
        if not known_classes(usage.classes, side, total):
            return f"how many tokens went {what}, and of which class, is not known"
    sum_of = Decimal(0)
    for one, count in usage.classes.items():
        price = prices.price(one)
        if price is None and count:
            return f"{count} tokens are {one.value}, which has no price"
        sum_of += count * (price or 0)
    nanousd = _nanousd(sum_of)
    return nanousd if nanousd <= USAGE_MAX else "it is beyond what can be counted"


class PriceTable:
    """Prices of a stated day. ``digest`` names them: the same prices have the same, in whatever file they are.

    ``as_of`` is None where a judge's own table does not say it. Safe to share between threads.
    """

    def __init__(
        self,
        models: Mapping[str, Sequence[ModelPrices]],
        *,
        as_of: str | None,
        source: str | None = None,
        file: str | None = None,
        place: str = "prices",
    ) -> None:
        self.as_of = as_of
        self.source = source
        self.file = file
        told = {name: [_written(entry) for entry in entries] for name, entries in models.items()}
        self.digest = digest_of_value({"as_of": as_of, "currency": "USD", "models": told})
        self._document: dict[str, JsonValue] = {
            "version": 1, "as_of": as_of, **{key: text for key, text in (("source", source), ("file", file)) if text},
            "models": told,
        }  # fmt: skip
        self._by_name: dict[str, Sequence[ModelPrices]] = {}
        for name, entries in models.items():
            where = f"{place}.models.{name}"
            _check_entries(entries, where)
            for alias in dict.fromkeys([name, *(alias for one in entries for alias in one.aliases)]):
                if self._by_name.setdefault(alias, entries) is not entries:
                    raise WorkOrderInvalid(f'{where}: "{alias}" has prices already', "Name it once", place=where)

    def document(self) -> dict[str, JsonValue]:
        """The table that `read_prices` reads back, with the name of the file that it was read from."""
        return dict(self._document)

    def __contains__(self, model: object) -> bool:
        return model in self._by_name

    def models(self) -> list[str]:
        """All names that have prices, sorted."""
        return sorted(self._by_name)

    def cost(self, model: str | None, usage: Usage | None, *, on: dt.date | None = None) -> int | None:
        """What the usage (as `usage_shapes.normalise` gives it) cost in nano-USD, rounded up; None where unknown.

        ``on`` is the day of the dispatch, today (UTC) if absent.
        """
        found = self.cost_or_why(model, usage, on=on)
        return found if isinstance(found, int) else None

    def cost_or_why(self, model: str | None, usage: Usage | None, *, on: dt.date | None = None) -> int | str:
        """The cost, or why it is unknown, in words."""
        if usage is None:
            return "nothing was reported as used"
        if model is None:
            return "the model is not told"
        if model not in self._by_name:
            return f'the model "{one_line(model, length_max=80)}" has no prices'
        if usage.tokens_in is None:
            return "how many tokens went in, and of which class, is not known"
        entry = _entry(self._by_name[model], on or _today(), usage.tokens_in)
        return entry if isinstance(entry, str) else cost_of(entry, usage)

    def priced(self, usage: Usage | None, model: str | None, *, on: dt.date | None = None) -> Usage | None:
        """The usage with its cost, or with a problem that says why that is unknown.

        A cost that was reported is kept. What a stream that broke off had told is priced as such, a lower bound.
        """
        if usage is None or usage.cost_nanousd is not None:
            return usage
        found = self.cost_or_why(model, usage, on=on)
        if isinstance(found, int):
            return attrs.evolve(usage, cost_nanousd=found)
        seen = (
            None if usage.seen is None else attrs.evolve(usage.seen, cost_nanousd=self.cost(model, usage.seen, on=on))
        )
        return attrs.evolve(usage, problems=(*usage.problems, f"the cost is unknown: {found}"), seen=seen)

    def bound(self, model: str, *, tokens_in_max: int, tokens_out_max: int, on: dt.date | None = None) -> DispatchBound:
        """The most that a dispatch of so many tokens can use, from ``on`` (today if absent) onwards.

        The dearest class of each side counts, and every price that is or will be valid: a bound that holds whatever the
        tokens turn out to be. ``nanousd`` is None where the model has no price for one of the sides, or none for
        requests of that size.
        """
        entries = self._by_name.get(model)
        nanousd = None if entries is None else _worst(entries, on or _today(), tokens_in_max, tokens_out_max)
        return DispatchBound(tokens_in_max, tokens_out_max, nanousd)


def read_prices(table: Mapping[str, JsonValue], *, place: str, file: str | None = None) -> PriceTable:
    """The prices of a price file or of a work order's table; raises WorkOrderInvalid with the place of the fault."""
    read = read_table(PricesTable, table, place=place)
    models = {name: told if isinstance(told, list) else [told] for name, told in read.models.items()}
    return PriceTable(models, as_of=read.as_of, source=read.source, file=file or read.file, place=place)


def _written(entry: ModelPrices) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return told


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _nanousd(usd_for_millions: Decimal) -> int:
    """Tokens times US dollars for a million tokens, as nano-USD: a thousandth of a dollar for a million is one."""
    return int((usd_for_millions * 1000).to_integral_value(ROUND_CEILING))


def _check_entries(entries: Sequence[ModelPrices], place: str) -> None:
    if not entries:
        raise WorkOrderInvalid(f"{place}: there are no prices", "Give a table with input and output", place=place)
    seen = set()
    for entry in entries:
        key = (entry.from_day, entry.tokens_in_max)
        if key in seen:
            told = "the same from and tokens_in_max"
            raise WorkOrderInvalid(f"{place}: two entries have {told}", "Keep one of them", place=place)
        seen.add(key)


def _valid(entries: Iterable[ModelPrices], on: dt.date) -> list[ModelPrices]:
    """The entries of the last day that is not after ``on``."""
    begun = [entry for entry in entries if (entry.from_day or "") <= on.isoformat()]
    last = max((entry.from_day or "" for entry in begun), default="")
    return [entry for entry in begun if (entry.from_day or "") == last]


def _fitting(entries: Iterable[ModelPrices], tokens_in: int) -> ModelPrices | None:
    """The entry for the smallest requests that this one is among."""
    fitting = [entry for entry in entries if entry.tokens_in_max is None or tokens_in <= entry.tokens_in_max]
    return min(fitting, key=lambda entry: entry.tokens_in_max or USAGE_MAX + 1, default=None)


def _entry(entries: Iterable[ModelPrices], on: dt.date, tokens_in: int) -> ModelPrices | str:
    valid = _valid(entries, on)
    if not valid:
        return f"the model has no prices on {on.isoformat()}"
    return _fitting(valid, tokens_in) or f"the model has no prices for a request of {tokens_in} tokens"


def _worst(entries: Sequence[ModelPrices], on: dt.date, tokens_in: int, tokens_out: int) -> int | None:
    """The dearest that can come, in nano-USD; None where something that can come has no price."""
    valid = _valid(entries, on)
    later = [entry for entry in entries if (entry.from_day or "") > on.isoformat()]
    days = {entry.from_day for entry in (*valid, *later)}
    worst = None
    for day in days:
        of_day = [entry for entry in (*valid, *later) if entry.from_day == day]
        top = _fitting(of_day, tokens_in)
        if top is None:
            return None
        for entry in of_day:
            if (entry.tokens_in_max or USAGE_MAX + 1) > (top.tokens_in_max or USAGE_MAX + 1):
                continue
            dear_in, dear_out = (_dearest(entry, side) for side in (TOKENS_IN, TOKENS_OUT))
            if dear_in is None or dear_out is None or entry.input is None or entry.output is None:
                return None
            worst = max(
                worst or 0, _nanousd(min(tokens_in, entry.tokens_in_max or tokens_in) * dear_in + tokens_out * dear_out)
            )
    return worst


def _dearest(entry: ModelPrices, side: Iterable[TokenClass]) -> Decimal | None:
    return max((price for one in side if (price := entry.price(one)) is not None), default=None)
