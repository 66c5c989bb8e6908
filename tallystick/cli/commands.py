"""The commands and their options. Each loads what it needs when it is given, so that help is quick."""

from __future__ import annotations

from pathlib import Path

import click

from .device_commands import device
from .ledger_commands import ledger_backup, ledger_compact
from .report_commands import compare, gate, report
from .settings import Settings, common, json_output
from .snapshot_commands import adopt, export, import_

__all__ = ["cli"]

_POSITIVE = click.IntRange(min=1)
_CONCURRENCY = click.IntRange(min=1, max=100_000)


def _version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib import metadata

        try:
            found = metadata.version("tallystick")
        except metadata.PackageNotFoundError:
            found = "(not installed)"
        click.echo(f"tallystick {found}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)
def cli() -> None:
    """Run evaluations that cost money around a durable ledger: no answer is lost, and no outcome is guessed."""


@cli.command(short_help="Begin a small project that runs at once.")
@click.argument("folder", required=False, default=".", type=click.Path(path_type=Path))
@click.option(
    "--target",
    type=click.Choice(("python", "http", "chat", "process")),
    default="python",
    show_default=True,
    help="What is to be evaluated: a function, a service, a chat model or a program.",
)
@click.option("--url", metavar="URL", help="The service's or model's own address, instead of a stand-in beside it.")
@json_output
@common
@click.pass_obj
def init(settings: Settings, folder: Path, *, target: str, url: str | None) -> int:
    """Write a work order, cases, a target and a README into FOLDER, which is empty or not there yet.

    What stands there runs at once; replace one thing after the other by your own.
    """
    from .starting import start_project

    return start_project(settings, folder, target=target, url=url)


@cli.command(short_help="Execute the work order in a file.")
@click.argument("order", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check everything and show what would be done; call nothing.")
@click.option("--limit", type=_POSITIVE, metavar="N", help="Take up at most N planned observations, then stop.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only cases with this metadata, as [cases] where.")
@click.option("--sample", type=_POSITIVE, metavar="N", help="Only N cases, as [cases] sample.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Which N cases, as [cases] seed.")
@click.option("--concurrency", type=_CONCURRENCY, metavar="N", help="At most N calls at a time.")
@click.option("--new", is_flag=True, help="Begin a new run, which pays again, even if there is one of this work order.")
@json_output
@common
@click.pass_obj
def run(
    settings: Settings,
    order: Path,
    *,
    dry_run: bool,
    limit: int | None,
    where: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    concurrency: int | None,
    new: bool,
) -> int:
    """Execute the work order in the file ORDER.

    An unfinished run of the same work order goes on. A finished one prints its report and makes no call. Which cases
    are asked is part of what the run is: with other --where, --sample or --seed it is another run.
    """
    from . import running

    choice = running.CaseChoice(where, sample, seed)
    if dry_run:
        return running.show_preflight(settings, order, choice, concurrency=concurrency, new=new)
    return running.run_order(settings, order, choice, limit=limit, concurrency=concurrency, new=new)


@cli.command(short_help="Recover a run and go on with it.")
@click.argument("run", required=False)
@click.option("--check", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--retry", metavar="STATE[:REASON]", help="Let failed, unavailable, parked or cancelled ones wait again.")
@click.option("--amend", metavar="UNIT=LIMIT", multiple=True, help="Change a budget's limit; needs --reason.")
@click.option("--reason", metavar="TEXT", help="Why the limit is changed; kept in the ledger.")
@click.option("--limit", type=_POSITIVE, metavar="N", help="Take up at most N planned observations, then stop.")
@click.option("--concurrency", type=_CONCURRENCY, metavar="N", help="At most N calls at a time.")
@json_output
@common
@click.pass_obj
def resume(
    settings: Settings,
    run: str | None,
    *,
    check: bool,
    retry: str | None,
    amend: tuple[str, ...],
    reason: str | None,
    limit: int | None,
    concurrency: int | None,
) -> int:
    """Recover RUN (an id, the beginning of one, or a name) and go on; without RUN the newest unfinished one."""
    from . import running

    if check:
        from .checking import show_resume_check

        return show_resume_check(settings, run, retry=retry, amend=amend, reason=reason)
    return running.resume_run(
        settings, run, retry=retry, amend=amend, reason=reason, limit=limit, concurrency=concurrency
    )


@cli.command(short_help="Make a new run that reuses what has not changed.")
@click.argument("run")
@click.argument("order", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Show what is reused and what will be paid; change nothing.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only cases of ORDER with this metadata, as for run.")
@click.option("--sample", type=_POSITIVE, metavar="N", help="Only N cases of ORDER, as for run.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Which N cases, as for run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_output
@common
@click.pass_obj
def fork(
    settings: Settings,
    run: str,
    order: Path | None,
    *,
    dry_run: bool,
    where: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    yes: bool,
) -> int:
    """Make a new run out of RUN, by the work order in the file ORDER or by that of RUN with today's code.

    Observations of the same case, variant and repetition are reused, what is unknown stays unknown, all else is to pay.
    This is shown first. Nothing is called: `resume` goes on with the new run.
    """
    from .forking import fork_from
    from .running import CaseChoice

    return fork_from(settings, run, order, CaseChoice(where, sample, seed), dry_run=dry_run, yes=yes)


@cli.command(short_help="Judge what a run has observed.")
@click.argument("run")
@click.argument("order", type=click.Path(path_type=Path))
@click.option("--at", "at_event", type=_POSITIVE, metavar="EVENT", help="Only what was observed up to this event.")
@click.option("--new", is_flag=True, help="Begin a new evaluation, even if there is one of these judges.")
@click.option("--retry", multiple=True, metavar="REASON", help="Judge again what has no verdict for this reason.")
@click.option(
    "--reparse", metavar="EVALUATION", help="Read again the replies that this evaluation has kept; call nothing."
)
@click.option("--concurrency", type=_CONCURRENCY, metavar="N", help="At most N calls at a time.")
@json_output
@common
@click.pass_obj
def judge(
    settings: Settings,
    run: str,
    order: Path,
    *,
    at_event: int | None,
    new: bool,
    retry: tuple[str, ...],
    reparse: str | None,
    concurrency: int | None,
) -> int:
    """Judge what RUN has observed, by the judges in the file ORDER; no target is called.

    An unfinished evaluation of the same judges goes on. A finished one is shown, unless more was observed since.
    """
    from .judging import judge_run

    return judge_run(
        settings, run, order, at_event=at_event, new=new, retry=retry, reparse=reparse, concurrency=concurrency
    )


@cli.command(short_help="Hold judges against labelled observations.")
@click.argument("order", type=click.Path(path_type=Path))
@click.argument("labelled", type=click.Path(path_type=Path))
@click.option("--concurrency", type=_CONCURRENCY, metavar="N", help="At most N calls at a time.")
@json_output
@common
@click.pass_obj
def qualify(settings: Settings, order: Path, labelled: Path, *, concurrency: int | None) -> int:
    """Hold the judges in the file ORDER against the observations with known verdicts in the file LABELLED.

    Their accuracy, confusion and agreement are shown and kept: a judge that a work order requires to be qualified is so
    from then on.
    """
    from .qualifying import qualify_judges

    return qualify_judges(settings, order, labelled, concurrency=concurrency)


@cli.command(short_help="List the targets and judges that are installed.")
@json_output
@common
@click.pass_obj
def adapters(settings: Settings) -> int:
    """List the kinds of targets and judges that a work order can name here, with the package and version of each.

    One that cannot be used is listed with the reason.
    """
    from .adapter_list import show_adapters

    return show_adapters(settings)


@cli.command(short_help="List the runs, the newest first.")
@click.option("--limit", type=_POSITIVE, default=20, show_default=True, metavar="N", help="The N newest.")
@json_output
@common
@click.pass_obj
def runs(settings: Settings, *, limit: int) -> int:
    """List the runs of the ledger, the newest first."""
    from .looking import show_runs

    return show_runs(settings, limit=limit)


@cli.command(short_help="Show how a run stands and who executes it.")
@click.argument("run", required=False)
@json_output
@common
@click.pass_obj
def status(settings: Settings, run: str | None) -> int:
    """Show how RUN stands and who executes it; without RUN the newest unfinished, else the newest."""
    from .looking import show_status

    return show_status(settings, run)


@cli.command(short_help="Show everything that happened to one case.")
@click.argument("run_and_case", nargs=-1, required=True, metavar="[RUN] CASE")
@click.option("--variant", metavar="V", help="Only this variant.")
@click.option("--repetition", type=_POSITIVE, metavar="N", help="Only this repetition.")
@json_output
@common
@click.pass_obj
def show(settings: Settings, run_and_case: tuple[str, ...], *, variant: str | None, repetition: int | None) -> int:
    """Show everything that happened to one CASE of RUN; without RUN of the newest run."""
    from .looking import show_case

    if len(run_and_case) > 2:
        raise click.UsageError("a run and a case are wanted, or a case alone")
    run = run_and_case[0] if run_and_case[1:] else None
    return show_case(settings, run, run_and_case[-1], variant=variant, repetition=repetition)


@cli.command(short_help="List or settle unknown outcomes.")
@click.argument("run", required=False)
@click.option("--call", metavar="ID", help="Only the call with this id or beginning of one.")
@click.option("--case", metavar="ID", help="Only this case.")
@click.option("--variant", metavar="V", help="Only this variant.")
@click.option("--reason-is", metavar="REASON", help="Only outcomes that are unknown for this reason.")
@click.option(
    "--landed",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="It was done, and this is its answer (JSON; for several JSON Lines of call, answer and usage).",
)
@click.option("--not-landed", is_flag=True, help="It was not done and never will be.")
@click.option("--give-up", is_flag=True, help="Nobody will ever know; its bound counts as spent.")
@click.option("--reason", metavar="TEXT", help="How that is known; kept in the ledger. Needed with a decision.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_output
@common
@click.pass_obj
def reconcile(
    settings: Settings,
    run: str | None,
    *,
    call: str | None,
    case: str | None,
    variant: str | None,
    reason_is: str | None,
    landed: Path | None,
    not_landed: bool,
    give_up: bool,
    reason: str | None,
    yes: bool,
) -> int:
    """List the unknown outcomes of RUN with their evidence, or settle those that the filters choose.

    Without RUN those of the newest run are listed. A decision needs RUN.
    """
    from .settling import Wanted, list_unknown, settle

    wanted = Wanted(run, call, case, variant, reason_is)
    if sum((landed is not None, not_landed, give_up)) > 1:
        raise click.UsageError("--landed, --not-landed and --give-up exclude each other")
    if landed is None and not not_landed and not give_up:
        return list_unknown(settings, wanted)
    if run is None:
        raise click.UsageError("a decision is for good and needs the run: name RUN")
    return settle(settings, wanted, landed=landed, not_landed=not_landed, reason=reason, yes=yes)


@cli.command(short_help="Ask whoever executes a run to stop.")
@click.argument("run")
@click.option("--abandon", is_flag=True, help="Give up for good what has not begun; needs --reason.")
@click.option("--reason", metavar="TEXT", help="Why; kept in the ledger.")
@json_output
@common
@click.pass_obj
def cancel(settings: Settings, run: str, *, abandon: bool, reason: str | None) -> int:
    """Ask the process that executes RUN to stop, as Ctrl-C there would."""
    from .cancelling import abandon_run, ask_to_stop

    if abandon:
        return abandon_run(settings, run, reason=reason)
    return ask_to_stop(settings, run, reason=reason)


cli.add_command(device)
cli.add_command(report)
cli.add_command(compare)
cli.add_command(gate)
cli.add_command(export)
cli.add_command(import_)
cli.add_command(adopt)


@cli.group()
def ledger() -> None:
    """Look after the ledger's file."""


@ledger.command("check")
@json_output
@common
@click.pass_obj
def ledger_check(settings: Settings) -> int:
    """Check that the ledger is sound and keeps its promises; change nothing."""
    from .housekeeping import check

    return check(settings)


@ledger.command("upgrade")
@json_output
@common
@click.pass_obj
def ledger_upgrade(settings: Settings) -> int:
    """Bring the ledger to this version's schema, after a backup."""
    from .housekeeping import upgrade

    return upgrade(settings)


ledger.add_command(ledger_backup)
ledger.add_command(ledger_compact)
