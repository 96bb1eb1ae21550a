"""The command `moat`: where a run stands, where a row comes from, whether all is right, profiles, a tool, the critic.

Starts quickly: whatever is heavy is imported by the command that needs it, and torch by none that asks no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import replace
from math import isfinite
from os.path import abspath, expanduser
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from moat.terminal import escape

EXAMPLES = """
Examples:

    moat status

    moat profile use tiny

    moat exec --domain maths "R1 = Calculator(2 + 3)"

    moat import gsm8k train.jsonl --out gsm8k.parquet

    moat trace 0f3c5a7b9d1e2f40/3

    moat diff 1 2 --table evals

    moat verify

    moat show-tree textcraft/oak_sign

    moat export planner --out ../planner

    moat plan --profile paper_llama2_7b -S sample.k=5

    moat calibrate-critic --kind executor
"""

app = typer.Typer(
    help="MOAT: joint alignment tuning of a planner and a grounder.\n" + EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
profile = typer.Typer(help="Sets of values for params.yaml.", no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(profile, name="profile")


def console() -> Console:
    """Where answers go. Made anew, so that it writes to the stdout of now."""
    return Console(highlight=False)


@contextmanager
def faults(*more: type[Exception], status: int = 1) -> Iterator[None]:
    """Turn an error of ours (or one of `more`) into one line on stderr and an exit status; a bug keeps its traceback."""
    from moat.params import ParamsError
    from moat.status import StatusError

    expected: tuple[type[Exception], ...] = (OSError, ParamsError, StatusError, *more)
    try:
        yield
    except expected as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error[/] {escape(str(error))}")
        raise typer.Exit(status) from error


Pipeline = Annotated[
    str, typer.Option("--pipeline", help="moat or agent_r; by default the one whose folder is around the current one.")
]


def pipeline_folder(pipeline: str = "") -> Path:
    """A pipeline's folder: the one around the current folder, or the named one of its project.

    Raises FileNotFoundError outside of a project, ParamsError for a name that is none.
    """
    from moat.pipelines import folder

    return folder(Path.cwd(), pipeline)


def project() -> Path:
    """The project's folder, for what MOAT's pipeline alone has.

    Raises FileNotFoundError outside of a project, ParamsError inside of Agent-R's pipeline.
    """
    from moat.params import ParamsError
    from moat.pipelines import is_agent_r

    found = pipeline_folder()
    if is_agent_r(found):
        raise ParamsError(
            f"{found} is Agent-R's pipeline, and this command is of MOAT's alone: run it from the folder above"
        )
    return found


def away(root: Path) -> bool:
    """Whether a pipeline's folder is not the one around the current folder, where paths and commands would mean others."""
    return pipeline_folder() != root


def repro(root: Path) -> str:
    """The command that runs a pipeline."""
    return f"dvc repro -R {root.name}" if away(root) else "dvc repro"


def print_json(value: object) -> None:
    """An answer for programs: JSON on stdout, with null for the numbers that JSON lacks (NaN, infinite)."""
    from json import dumps

    typer.echo(dumps(_finite(value), indent=1, ensure_ascii=False))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


@app.command()
def status(pipeline: Pipeline = "") -> None:
    """Say which artifacts each round has, and what `dvc repro` would run now and why.

    Tables show their number of rows. Exit status 1 when DVC can not answer.

    Example: `moat status`
    """
    from moat import layout, params
    from moat.pipelines import is_agent_r, settings_of
    from moat.status import ABSENT, AGENT_R, MOAT, artifacts, dvc_status, folder, reasons, recorded, rows_in

    out = console()
    with faults():
        root = pipeline_folder(pipeline)
        kinds = AGENT_R if is_agent_r(root) else MOAT
        settings = params.load_as(root / params.PARAMS, settings_of(root))
        keys = sorted(settings.evaluated, key=int)
        shared = [
            *(f"{name} {rows_in(root / path)}" for name, path in kinds.once.items()),
            f"base model {folder(root / layout.BASE_MODEL)}",
            *(f"{path} {'yes' if (root / path).is_file() else ABSENT}" for path in (layout.METRICS, layout.REPORT)),
        ]
        out.print(" · ".join(shared))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("artifact")
        columns = []
        for key in keys:
            table.add_column("cold start" if key == "0" else f"round {key}", justify="right")
            columns.append(artifacts(root, key, kinds))
        for name in kinds.names:
            table.add_row(name, *(column[name] for column in columns))
        out.print(table)
        changes = dvc_status(root)
        done = recorded(root)
    if not changes:
        out.print("Nothing to run: every stage is up to date.")
        return
    out.print(f"`{repro(root)}` would run {len(changes)} stage(s), and those after them whose inputs then differ:")
    waiting = Table(box=None, show_header=False, pad_edge=False)
    for name, found in changes.items():
        waiting.add_row(f"  {escape(name)}", escape(reasons(found, name in done)))
    out.print(waiting)


@app.command()
def trace(
    key: Annotated[
        str, typer.Argument(help="A task_id, task_id/k, a demo_id, or a row_id of a training set; of Agent-R also a cut.")
    ],
    round: Annotated[str | None, typer.Option(help="The round; by default the last that has the key.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
    pipeline: Pipeline = "",
) -> None:
    """Tell the story of a trained row: task, candidates, pair, verdict, training set, models.

    Of Agent-R: task, tree, the bad and the good path, judgements, splice, training set, model, and how that model fares.

    Example: `moat trace 0f3c5a7b9d1e2f40/3`
    """
    from moat import params
    from moat.pipelines import is_agent_r
    from moat.tables import TableError
    from moat.trace import TraceError

    with faults(TableError, TraceError):
        root = pipeline_folder(pipeline)
        if is_agent_r(root):
            from moat.agent_r.params import AgentParams
            from moat.agent_r.tracing import AgentTracer
            from moat.agent_r.tracing import show as show_agent

            story = AgentTracer(root, params.load_as(root / params.PARAMS, AgentParams)).trace(key, round)
            tell = show_agent
        else:
            from moat.trace import Tracer, show

            story, tell = Tracer(root, params.load(root / params.PARAMS)).trace(key, round), show
    print_json(story) if json else tell(story, console())


@app.command()
def diff(
    first: Annotated[
        str, typer.Argument(help="A round (1), a round at a revision (1@main~3), a revision or experiment, a file.")
    ],
    second: Annotated[str, typer.Argument(help="Another; also workspace, or dvc://PATH@REVISION::REPOSITORY.")],
    tables: Annotated[
        list[str] | None, typer.Option("--table", help="pairs, evals, … or a path; may be repeated; by default all.")
    ] = None,
    key: Annotated[str, typer.Option(help="Columns that tell rows apart, as task_id,k; by default the table's own.")] = "",
    tolerance: Annotated[float, typer.Option(min=0, help="Floats that differ by no more are equal.")] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write them to this file too, as a page.")] = None,
    pipeline: Pipeline = "",
) -> None:
    """Compare the tables of two rounds, revisions, experiments or files by key: rows, shifts, what turned, texts.

    Reads through DVC's cache or remote; nothing is checked out. Exit status 0: no difference, 1: some, 2: an error.

    Example: `moat diff 1 2 --table evals --table scores`
    """
    from moat.diff import DiffError
    from moat.diff_report import report
    from moat.publish import publish_text
    from moat.sides import SideError, Sides

    here = Path.cwd()
    files = [here / side for side in (first, second)]
    if html is not None:
        _new_file(html, files, "--html")
    with faults(DiffError, SideError, status=2), Console(stderr=True).status("reading") as spinner:
        alone = not pipeline and all(path.is_file() for path in files)  # needs no project
        with Sides(here if alone else pipeline_folder(pipeline), here) as sides:
            found = report(
                *(sides.find(side) for side in (first, second)),
                tables=tables or [],
                key=[name for name in key.split(",") if name],
                tolerance=tolerance,
                begin=lambda name: spinner.update(escape(name)),
            )
        if html is not None:
            from moat.diff_page import page

            publish_text(html, page(found))
    if json:
        print_json(found.to_json())
    else:
        from moat.diff_page import show

        show(found, console())
    if not found.equal:
        raise typer.Exit(1)


@app.command()
def verify(
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False, pipeline: Pipeline = ""
) -> None:
    """Check every table and model against what the method and the records say of it.

    Exit status 1 with a list (file, what, remedy) when something is wrong; warnings alone leave it 0.

    Example: `moat verify`
    """
    from moat.checkout import Level
    from moat.verify import show
    from moat.verify import verify as run

    with faults(), Console(stderr=True).status("reading") as spinner:
        root = pipeline_folder(pipeline)
        report = run(root, lambda title: spinner.update(escape(title)))
    print_json(report.to_json()) if json else show(report, console())
    if away(root) and not json:
        console().print(f"paths and commands are from {escape(str(root))}", soft_wrap=True)
    if report.found(Level.FAULT):
        raise typer.Exit(1)


@app.command("show-tree")
def show_tree(
    task: Annotated[str, typer.Argument(help="A task that a round of Agent-R searched, as textcraft/oak_sign.")],
    round: Annotated[str | None, typer.Option(help="The round; by default the last that has the task.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the tree to this file too, as a page.")] = None,
    pipeline: Pipeline = "agent_r",
) -> None:
    """Draw a search tree of Agent-R: actions, observations, rewards, visits, and the pairs that revision made of it.

    Example: `moat show-tree textcraft/oak_sign --html tree.html`
    """
    from moat.agent_r.drawn_tree import NoTreeError, find, on_terminal, page
    from moat.publish import publish_text
    from moat.tables import TableError

    with faults(NoTreeError, TableError):
        drawing = find(pipeline_folder(pipeline), task, round)
        if html is not None:
            _new_file(html)
            publish_text(html, page(drawing))
    out = console()
    out.print(on_terminal(drawing, out.width))


@app.command()
def export(
    role: Annotated[str, typer.Argument(help="planner or grounder; actor of Agent-R.")],
    out: Annotated[Path, typer.Option(help="The folder to write, which must not exist.")],
    round: Annotated[str, typer.Argument(help="The round (0: the cold start); by default the last one.")] = "",
    pipeline: Pipeline = "",
) -> None:
    """Write a round's model as a folder that stands alone: an adapter merged into its base, a whole model as it is.

    transformers and `vllm serve` take the folder.

    Example: `moat export planner --out ../planner`
    """
    from moat import params
    from moat.export import export as run
    from moat.pipelines import is_agent_r, settings_of
    from moat.status import AGENT_R, MOAT

    with faults():
        root, out = pipeline_folder(pipeline), Path(abspath(expanduser(out)))
        roles = (AGENT_R if is_agent_r(root) else MOAT).models
        if role not in roles:
            raise typer.BadParameter(f"no role {role!r}: {' or '.join(roles)}", param_hint="ROLE")
        known = sorted(params.load_as(root / params.PARAMS, settings_of(root)).evaluated, key=int)
        key = round or known[-1]
        if key not in known:
            raise typer.BadParameter(f"no round {key!r}: params.yaml has {', '.join(known)}", param_hint="ROUND")
        with chdir(root):
            kind = run(role, key, out)
    console().print(f"models/{role}/{key} ({kind.value}) → {escape(str(out))}", soft_wrap=True)


@app.command()
def ablate(
    pipeline: Annotated[str, typer.Option(help="agent_r; `make science` runs the first pipeline's.")] = "agent_r",
    seeds: Annotated[list[int] | None, typer.Option(help="May be repeated; by default 100 to 104.")] = None,
    conditions: Annotated[list[str] | None, typer.Option(help="May be repeated; by default all.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Workspaces that run at once.")] = 2,
) -> None:
    """Run the modes of Agent-R over several seeds, in workspaces under science/, and tabulate them.

    What is there already is not run again. Tables and figures are written to science/agent_r as they come.

    Example: `moat ablate --pipeline agent_r --seeds 100 --conditions agent_r --conditions bc`
    """
    from moat import pipelines, science
    from moat.agent_r import ablation
    from moat.params import ParamsError

    out = console()
    with faults(RuntimeError):
        if pipeline != pipelines.AGENT_R:
            raise ParamsError(f"no conditions for the pipeline {pipeline!r}: {pipelines.AGENT_R}")
        root = pipelines.folder(Path.cwd(), "moat")
        names = conditions or [one.name for one in ablation.CONDITIONS]
        told = ablation.ablate(root, seeds or science.SEEDS, names, jobs, lambda line: out.print(escape(line)))
    typer.echo(told)


@app.command("plan")
def plan_run(
    profile: Annotated[str, typer.Option(help="A file of profiles/, without .yaml; by default params.yaml.")] = "",
    change: Annotated[
        list[str] | None, typer.Option("-S", "--set-param", help="A setting to change, as sample.k=5; may be repeated.")
    ] = None,
    machine: Annotated[Path | None, typer.Option(help="A file like machine.yaml; by default that, if there is one.")] = None,
    peak: Annotated[float | None, typer.Option(min=0.001, help="TFLOP/s of a device, in place of the assumed.")] = None,
    bandwidth: Annotated[float | None, typer.Option(min=0.1, help="GB/s that a device reads its memory with.")] = None,
    reached: Annotated[float | None, typer.Option(min=0.01, max=1, help="Share of both that work reaches.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Say what a setting will cost on a machine, before it is run: rows, requests, tokens, memory, hours, sizes.

    Exit status 1 when something does not fit into a device's memory, or cannot be planned.

    Example: `moat plan --profile paper_llama2_7b --machine machines/8x80gb.yaml -S sample.k=5`
    """
    from moat import machine as machines
    from moat import params, planning, profiles
    from moat.architectures import ArchitectureError

    with faults(ArchitectureError, planning.PlanError):
        root = project()
        path = profiles.path_of(root, profile) if profile else root / params.PARAMS
        raw = planning.override(profiles.plain(path), change or [], path)
        settings = params.check(raw, params.Params, path)
        here = machines.load(root) if machine is None else machines.read(machine)
        made = planning.plan(settings, here, root, profile or params.PARAMS, peak=peak, bandwidth=bandwidth, share=reached)
    if json:
        print_json(planning.to_json(made))
    else:
        from moat.plan_page import show

        show(made, console())
    if made.fits is False or made.warnings:
        raise typer.Exit(1)


@profile.command("list")
def profile_list(pipeline: Pipeline = "") -> None:
    """List the profiles, and mark those whose values params.yaml has.

    Example: `moat profile list`
    """
    from moat import profiles
    from moat.params import PARAMS

    out = console()
    with faults():
        root = pipeline_folder(pipeline)
        current = profiles.plain(root / PARAMS)
        table = Table(box=None, show_header=False, pad_edge=False)
        for name in profiles.names(root):
            path = profiles.path_of(root, name)
            mark = "*" if profiles.plain(path) == current else " "
            table.add_row(mark, escape(name), escape(profiles.headline(path)))
    out.print(table if table.row_count else f"no profiles in {profiles.FOLDER}/")


@profile.command("use")
def profile_use(
    name: Annotated[str, typer.Argument(help="A file of profiles/, without .yaml.")], pipeline: Pipeline = ""
) -> None:
    """Write a profile's values into params.yaml; its comments, quotes and anchors stay.

    Example: `moat profile use tiny`
    """
    from moat import profiles
    from moat.params import PARAMS

    with faults():
        root = pipeline_folder(pipeline)
        changed = profiles.use(root, name, root / PARAMS)
        file = f"{root.name}/{PARAMS}" if away(root) else PARAMS
    console().print(
        f"{file} now has the values of {escape(name)}: `{repro(root)}` runs what they change"
        if changed
        else f"{file} had the values of {escape(name)} already",
        soft_wrap=True,
    )


@profile.command("show")
def profile_show(
    name: Annotated[
        str, typer.Argument(help="A file of profiles/, without .yaml; by default the one params.yaml has.")
    ] = "",
    pipeline: Pipeline = "",
) -> None:
    """Print a profile with its comments; without a name, say which one params.yaml has, and what differs from it.

    Example: `moat profile show paper_llama2_7b`
    """
    from moat import profiles
    from moat.params import PARAMS, read_text

    with faults():
        root = pipeline_folder(pipeline)
        if name:
            typer.echo(read_text(profiles.path_of(root, name)), nl=False)
            return
        current = profiles.plain(root / PARAMS)
        found = {
            one: profiles.differences(current, profiles.plain(profiles.path_of(root, one))) for one in profiles.names(root)
        }
    if not found:
        raise typer.Exit(1)
    near = min(found, key=lambda one: len(found[one]))
    if not found[near]:
        typer.echo(f"{PARAMS} has the values of {near}")
        return
    typer.echo(f"{PARAMS} has the values of no profile; nearest to {near}, but for")
    _tell_differences(found[near], PARAMS, near)


@profile.command("diff")
def profile_diff(
    one: Annotated[str, typer.Argument(help="A file of profiles/, without .yaml.")],
    other: Annotated[str, typer.Argument(help="Another; by default params.yaml.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
    pipeline: Pipeline = "",
) -> None:
    """Print the settings in which a profile and another (or params.yaml) differ; exit status 1 when there are any.

    Example: `moat profile diff paper_llama2_7b paper_mistral_7b`
    """
    from moat import profiles
    from moat.params import PARAMS

    with faults():
        root = pipeline_folder(pipeline)
        second = profiles.path_of(root, other) if other else root / PARAMS
        found = profiles.differences(profiles.plain(profiles.path_of(root, one)), profiles.plain(second))
    if json:
        print_json({key: list(pair) for key, pair in found.items()})
    elif found:
        _tell_differences(found, one, other or PARAMS)
    else:
        typer.echo(f"{one} and {other or PARAMS} have the same values")
    if found:
        raise typer.Exit(1)


def _tell_differences(found: Mapping[str, tuple[object, object]], one: str, other: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("key", one, other):
        table.add_column(name)
    for key, pair in found.items():
        table.add_row(key, *(escape(value if isinstance(value, str) else repr(value)) for value in pair))
    console().print(table)


@app.command("exec")
def execute_actions(
    actions: Annotated[str, typer.Argument(help="Actions as a grounder writes them, separated by semicolons.")],
    domain: Annotated[str, typer.Option(help="Whose tools the actions may use.")] = "maths",
    task: Annotated[
        str,
        typer.Option(help="A task_id of data/tasks, for its page or its goal; its turns before are run first."),
    ] = "",
) -> None:
    """Run actions with the real tools; print each result, or the typed failure with exit status 1.

    The tools of qa look into the project's corpus (`dvc repro index`), or into Wikipedia if params say so.

    Example: `moat exec --domain maths "R1 = Calculator(2 + 3); R2 = Calculator(R1 * 4)"`
    """
    from moat.agentgym import ServerError
    from moat.corpus import CorpusError
    from moat.engines.base import EngineError
    from moat.hub import ModelError
    from moat.journal import JournalError
    from moat.reader import ReaderError
    from moat.tables import TableError
    from moat.toolbox import Goal, Toolbox, ToolboxError, goal_of, open_toolbox
    from moat.tools.docs import DOCS
    from moat.wikipedia import WikipediaError

    with faults(
        *(CorpusError, EngineError, JournalError, ModelError, ReaderError),
        *(ServerError, TableError, ToolboxError, WikipediaError),
    ):
        goal = Goal(domain, "")
        if task:
            from moat.tasks import find

            goal = replace(goal_of(find(project(), task)), gold_answer="")
            domain = goal.domain
        if domain not in DOCS:
            raise typer.BadParameter(f"no domain {domain!r}; there are {', '.join(DOCS)}", param_hint="--domain")
        if domain in ("web", "webshop") and not task:
            raise typer.BadParameter(f"actions of {domain} are on a task's page: name a task", param_hint="--task")
        toolbox = Toolbox()
        if domain not in ("arithmetic", "maths"):
            from moat import machine, params
            from moat.stage import Stage

            root = project()
            with chdir(root):
                toolbox = open_toolbox(Stage("exec", params.load(root / params.PARAMS), machine.load(root), root), [domain])
        done = toolbox.execute(actions, goal)
    for name, result in done.results:
        typer.echo(f"{name} = {result}")
    if done.failure is not None:
        typer.echo(f"failed ({done.failure}): {done.message}", err=True)
        raise typer.Exit(1)


@app.command("import")
def import_source(
    source: Annotated[str, typer.Argument(help="The format, such as gsm8k_socratic.")] = "",
    files: Annotated[list[Path] | None, typer.Argument(help="The publisher's file; for Lumos plan, then ground.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the tasks to this Parquet table.")] = None,
    name: Annotated[str, typer.Option(help="Name of the task source in the table; by default the format.")] = "",
    setting: Annotated[list[str] | None, typer.Option("--set", help="A setting of the format, as key=value.")] = None,
    formats: Annotated[bool, typer.Option("--list", help="List the formats with their files and settings.")] = False,
) -> None:
    """Import a publisher's file: rows in, kept, and dropped by reason; --out writes the tasks that were kept.

    Example: `moat import gsm8k_socratic train_socratic.jsonl --out gsm8k.parquet`
    """
    from moat.importing import import_files
    from moat.schemas.tasks import TASKS
    from moat.sources.base import SourceError
    from moat.sources.registry import IMPORTERS, importer
    from moat.tables import TableError
    from moat.tasks import task_row
    from moat.toolbox import Toolbox

    if formats:
        for known, one in IMPORTERS.items():
            own = (
                f" (--set {', '.join(f'{key}={kind.__name__}' for key, kind in one.settings.items())})"
                if one.settings
                else ""
            )
            typer.echo(f"{known} {' '.join(one.files).upper()}: {one.doc}{own}")
        return
    if not source or not files:
        raise typer.BadParameter(
            "name a format and its file; `moat import --list` lists the formats", param_hint="SOURCE FILE"
        )
    with faults(SourceError, TableError):
        kinds = importer(source).settings
        settings = dict(_setting(pair, kinds) for pair in setting or [])
        if out is not None:
            _new_file(out, files)
        done = import_files(source, files, settings)
        typer.echo(done.summary())
        if not done.records:
            raise SourceError(
                f"no row was kept: is {', '.join(map(str, files))} of the format {source}? No table is written"
            )
        if out is not None:
            rows = [task_row(name or source, False, record, "onetime", Toolbox()) for record in done.records]
            TASKS.write(out, rows, {"stage": "import", "source": source, "settings": settings})


def _setting(pair: str, kinds: Mapping[str, type]) -> tuple[str, bool | int | str]:
    """Name and value of a `key=value`, the value of the type that the format's setting takes. Raises BadParameter."""
    key, sign, value = pair.partition("=")
    kind = kinds.get(key, str)  # an unknown one is refused with the list of those there are
    if not sign:
        raise typer.BadParameter(f"{pair!r} has no value: write {key}=VALUE", param_hint="--set")
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise typer.BadParameter(f"{key} takes true or false, not {value!r}", param_hint="--set")
        return key, value.lower() == "true"
    if kind is int:
        try:
            return key, int(value)
        except ValueError:
            raise typer.BadParameter(f"{key} takes a whole number, not {value!r}", param_hint="--set") from None
    return key, value


def _new_file(out: Path, inputs: Iterable[Path] = (), option: str = "--out") -> None:
    """Refuse an `option` that is a folder, which publishing would replace, or one of the inputs. Raises BadParameter."""
    if out.is_dir():
        raise typer.BadParameter(f"{out} is a folder: name a file in it", param_hint=option)
    if out.exists() and any(path.exists() and out.samefile(path) for path in inputs):
        raise typer.BadParameter(f"{out} is the file that is read: name another one", param_hint=option)


@app.command("calibrate-critic")
def calibrate_critic(
    kind: Annotated[
        str, typer.Option(help="executor, llm, executor_then_llm or none; by default that of params.yaml.")
    ] = "",
    tasks: Annotated[int, typer.Option(min=1, help="Stories that the cases are made of.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the stories; the report's are those of 0.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the figures to this JSON file too.")] = None,
) -> None:
    """Measure a critic on actions that are known to be right or wrong: agreement and confusion matrix.

    The stage calibrate_critic does the same for the critic of params.yaml, and the report shows it. A kind with a judge
    needs critic.judge and critic.revision in params.yaml.

    Example: `moat calibrate-critic --kind executor`
    """
    import json

    from moat import layout, machine, params
    from moat.calibration import calibrate, known_cases
    from moat.engines.base import EngineError
    from moat.hub import ModelError
    from moat.journal import JournalError
    from moat.judge_prompt import JudgeError
    from moat.judging import Judge
    from moat.publish import publish_text
    from moat.stage import Stage

    shown = console()
    with faults(EngineError, JournalError, JudgeError, ModelError):
        root = project()
        everything = params.load(root / params.PARAMS)
        chosen = {"critic": everything.critic.model_dump() | ({"kind": kind} if kind else {})}
        settings = params.check(everything.model_dump() | chosen, params.Params, root / params.PARAMS).critic
        if out is not None:
            _new_file(out)
        if out is not None and out.resolve() == (root / layout.CALIBRATION).resolve():
            raise params.ParamsError(f"{out} is the stage's: `dvc repro calibrate_critic` writes it; name another file")
        here = Stage("calibrate-critic", everything, machine.load(root), root)

        def judge() -> Judge:
            from moat.judge_engine import open_judge

            return open_judge(settings, here)

        found = calibrate(settings, known_cases(tasks, seed), judge)
        if out is not None:
            publish_text(out, json.dumps(found, indent=1) + "\n")
    verdicts = ("accept", "correct", "reject", "unparsed")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("actions", "known to be", "cases", *verdicts):
        table.add_column(name, justify="left" if name in ("actions", "known to be") else "right")
    for right in (True, False):
        own = [row for row in found["forms"] if row["right"] is right]
        word = "right" if right else "wrong"
        for row in own:
            cells = (str(row[verdict] or "") for verdict in verdicts)
            table.add_row(row["form"].replace("_", " "), word, str(row["n"]), *cells)
        sums = (str(sum(row[name] for row in own)) for name in ("n", *verdicts))
        table.add_row("all", word, *sums, style="bold", end_section=True)
    shown.print(table)
    shown.print(
        f"critic {found['critic']}: agrees on {found['agreement']:.1%} of {found['n']:,} cases "
        f"(95%: {found['low']:.1%} to {found['high']:.1%})"
    )


if __name__ == "__main__":
    app()
