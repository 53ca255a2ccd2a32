"""`make costs`: print what a month costs, how many rides fit, and what a store's records cost."""

import argparse
from collections.abc import Sequence
from typing import Final

from tools.costs import bill, limits, stores
from tools.transformed import stack

DESCRIPTION: Final = """\
Prints three tables in Markdown:

  1. A month's bill, while nothing happens and for rides, from the template,
     prices of AWS and what a ride uses. The load is even over the month.
  2. How many rides a second a stack takes, and what stops it first, from its
     parameters, AWS's quotas and assumed durations.
  3. What records cost in each store: a consumer runs over each one here, and
     its requests are counted.

Amounts are in dollars of us-east-1, and rather too high."""
EXAMPLES: Final = """\
examples:
  make costs                                     a million rides, with the defaults
  make costs ARGS="--rides 50000 --regions 2"    50,000 rides over two regions
  make costs ARGS="--set Stage=prod --set Tracing=Active"
                                                 with parameters of docs/parameters.md
docs/costs.md, docs/limits.md and layers/idempotency/docs/stores.md explain the tables;
`make contract` writes theirs."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make costs ARGS=…",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rides", type=float, default=1e6, metavar="N", help="rides in the month (1000000)")
    add(
        "--regions",
        type=int,
        choices=[1, 2],
        default=1,
        help="2 for the bill of a primary and a secondary (1)",
    )
    add(
        "--free-tier",
        action="store_true",
        help="the bill without what an account has free in each month",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the template; can be given several times",
    )
    options = parser.parse_args(arguments)
    chosen = dict[str, str]()
    for text in options.set:
        name, _, value = text.partition("=")
        chosen[name] = value
    try:
        bill.check(chosen)
    except ValueError as error:
        parser.error(str(error))
    options.set = chosen
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = parse(arguments)
    print_bill(options)
    print_limits(options)
    print_stores()


def print_bill(options: argparse.Namespace) -> None:
    """Print what a month costs."""
    resting, rides = bill.bill(options.rides, regions=options.regions, **options.set)
    if options.free_tier:
        paid = bill.beyond_free_tier(resting)
        rides = bill.beyond_free_tier([*resting, *rides])[len(paid) :]
        resting = paid
    print("# A month's bill\n")
    print(f"While nothing happens:\n\n{bill.lines(resting)}")
    print(f"{options.rides:,.0f} rides:\n\n{bill.lines(rides)}")
    print(f"Prices of us-east-1, {bill.LOOKED_UP}. No second source confirmed those marked *:")
    for name, price in bill.PRICES.items():
        if price.doubt:
            print(f"  {name}: {price.doubt} (aws.amazon.com/{price.page}/pricing)")


def print_limits(options: argparse.Namespace) -> None:
    """Print how many rides a second the stack takes."""
    found = limits.bounds(stack(**{**bill.PAID, **options.set}))
    print("\n# Rides a second\n")
    print(limits.lines(found, limits.PLANNED))
    print(f"First: {found[0].what}, at {found[0].rides:,.0f} rides a second.")


def print_stores() -> None:
    """Print what records cost in each store."""
    print("\n# Records of idempotency in each store\n")
    print(
        f"{stores.OPERATIONS:,.0f} operations a month, remembered for {stores.WINDOW_DAYS} days:\n"
    )
    print(stores.lines(), end="")


if __name__ == "__main__":
    main()
