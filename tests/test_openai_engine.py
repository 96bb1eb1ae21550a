"""The openai engine and its choice by role: moat/engines/openai.py, moat/models.py, moat/asking.py; against a stand-in."""

import json
import math
import shutil
import socket
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import numpy as np
import pytest

from moat import adapters, layout, models, params, runners
from moat import machine as machines
from moat.engines.base import Decoding, EngineError, FinishReason
from moat.engines.hf import HFEngine
from moat.engines.openai import Address, OpenAIEngine
from moat.export import export
from moat.machine import Machine, RoleEngine
from moat.params import Lora, ParamsError
from moat.provenance import content_hash
from moat.schemas.critiques import CRITIQUES
from moat.schemas.demos import DEMOS
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from moat.tables import metadata
from tests.openai_server import StandIn, serve
from tests.rows import demo, task
from tests.test_judging import ASKS, GOLD, TEMPLATE, WRONG, stage_with, write_round

KEY = "sk-secret/0123456789"
GREEDY, DRAWN = Decoding(0.0, 1.0, 12), Decoding(1.3, 0.9, 12)
WHERE = "engines.planner"


@pytest.fixture
def prompts(tokenizer):
    texts = ["How many?", "How many apples are there now?", "Ada has 4 apples. Ada buys 5.", "R1 = Calculator(4 + 5)"]
    return [tokenizer(text).input_ids for text in texts]


@pytest.fixture
def waits(monkeypatch):
    """Seconds that the engine waits between tries, and does not."""
    found = []
    monkeypatch.setattr(OpenAIEngine, "_wait", lambda self, seconds: found.append(seconds))
    return found


@pytest.fixture
def start(model, tokenizer):
    """Starts stand-ins; `start(logprobs="none").open(attempts=2)` is an engine on one."""
    running = []

    def make(own=model, **options):
        server = StandIn(own, tokenizer, **options)
        context = serve(server)
        server.url = context.__enter__()
        running.append(context)

        def opened(score=False, logprobs=False, **how):
            address = Address(**({"url": server.url, "model": "tiny", "where": WHERE} | how))
            return OpenAIEngine(address, encoder(tokenizer), tokenizer.eos_token_id, "</s>", score=score, logprobs=logprobs)

        server.open, server.stop = opened, lambda: running.remove(context) or context.__exit__(None, None, None)
        return server

    yield make
    for context in running:
        context.__exit__(None, None, None)


def encoder(tokenizer):
    return lambda text: tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


def inside(model, tokenizer):
    return HFEngine(model, tokenizer.pad_token_id, tokenizer.eos_token_id)


# --- the same answers as in process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", [GREEDY, DRAWN])
def test_generations_equal_those_in_process(start, model, tokenizer, prompts, decoding):
    """Ids, finish reason and log-probability, in the prompts' order. The stand-in draws as hf does, by the seed."""
    own = inside(model, tokenizer).generate(prompts, [5, 6, 7, 8], decoding)
    made = start().open(concurrency=3).generate(prompts, [5, 6, 7, 8], decoding)
    assert [(g.ids, g.finish_reason) for g in made] == [(g.ids, g.finish_reason) for g in own]
    np.testing.assert_allclose([g.logprob for g in made], [g.logprob for g in own], atol=1e-4)


def test_scores_equal_those_in_process(start, model, tokenizer, prompts):
    """log P of each completion token, to 1e-4; one number a token, the end token among them."""
    completions = [[*encoder(tokenizer)(text), tokenizer.eos_token_id] for text in ("Add 5 to 4", "R1", "9", "apples now")]
    made = start().open(score=True).score(prompts, completions)
    assert [values.dtype for values in made] == [np.float32] * 4
    for found, own in zip(made, inside(model, tokenizer).score(prompts, completions), strict=True):
        np.testing.assert_allclose(found, own, atol=1e-4)


@pytest.mark.parametrize(("prompt", "completion"), [([], [5]), ([5], [])])
def test_nothing_to_score_is_refused(start, prompt, completion):
    with pytest.raises(ValueError, match="at least one"):
        start().open(score=True).score([prompt], [completion])


@pytest.mark.trap(20)
def test_the_token_limit_is_the_requests_own(start, model, tokenizer, prompts):
    """40 tokens where the server's default is 16; cut there, it says length."""
    engine = start().open()
    assert [len(g.ids) for g in inside(model, tokenizer).generate(prompts[:1], [3], Decoding(1.0, 1.0, 40))] == [40]
    (made,) = engine.generate(prompts[:1], [3], Decoding(1.0, 1.0, 40))
    assert (len(made.ids), made.finish_reason) == (40, FinishReason.LENGTH)


@pytest.mark.trap(21)
def test_every_request_has_its_own_seed(start, prompts):
    """One prompt 16 times: 16 texts, as a server with one seed for all would not give."""
    made = start().open().generate([prompts[1]] * 16, range(16), Decoding(1.0, 1.0, 10))
    assert len({tuple(g.ids) for g in made}) == 16


@pytest.mark.trap(22)
def test_nothing_but_the_end_token_ends_a_text(start, prompts):
    """No stop strings, none of a server's sampling defaults, one completion a request."""
    server = start()
    server.open().generate(prompts, range(4), DRAWN)
    neutral = {
        "n": 1,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    for body in server.asked:
        assert not {"stop", "stop_token_ids"} & set(body)
        assert {name: body[name] for name in neutral} == neutral
    assert len(server.asked) == 4


def end_early(choice, end=2, **changes):
    """Make a completion of an end token after two tokens."""
    choice |= {"finish_reason": "stop", "token_ids": [*choice["token_ids"][:2], end]} | changes
    choice["logprobs"]["token_logprobs"] = [-1.0, -2.0, -4.0]


@pytest.mark.trap(20)
@pytest.mark.parametrize(("end", "why"), [(2, None), (77, 77)])
def test_the_end_token_is_no_part_of_a_text(start, prompts, end, why):
    """The tokenizer's own, or another of the model's that the server names; its log-probability counts: 1 + 2 + 4."""
    server = start()
    engine = server.open()
    server.change = lambda choice: end_early(choice, end, stop_reason=why)
    (made,) = engine.generate(prompts[:1], [0], GREEDY)
    assert (len(made.ids), made.finish_reason, made.logprob) == (2, FinishReason.STOP, -7.0)


@pytest.mark.trap(22)
def test_a_stop_string_of_the_servers_is_an_error(start, prompts):
    server = start()
    engine = server.open()
    server.change = lambda choice: end_early(choice, stop_reason="Task:")
    with pytest.raises(EngineError, match="stop string"):
        engine.generate(prompts[:1], [0], GREEDY)


@pytest.mark.trap(20)
@pytest.mark.parametrize("reason", ["content_filter", "abort", None, 7])
def test_any_other_end_is_an_error(start, prompts, reason):
    """Neither stop nor length: no text to work with. It is asked once: the same would come again."""
    server = start()
    engine = server.open(attempts=3)
    server.change = lambda choice: choice.update(finish_reason=reason)
    with pytest.raises(EngineError, match=f"{WHERE}.*not stop or length"):
        engine.generate(prompts[:1], [0], GREEDY)
    assert len(server.asked) == 1


# --- what a server does not tell --------------------------------------------------------------------------------------


def test_a_server_of_the_bare_protocol_gives_texts(start, model, tokenizer, prompts):
    """No field beyond the protocol's is sent then, and the ids are those of the text."""
    server = start(extras=False)
    engine = server.open()
    assert not engine.told.ids
    made = engine.generate(prompts, [5, 6, 7, 8], DRAWN)
    own = inside(model, tokenizer).generate(prompts, [5, 6, 7, 8], DRAWN)
    texts = [tokenizer.decode(g.ids, skip_special_tokens=True) for g in own]
    assert [tokenizer.decode(g.ids) for g in made] == texts
    assert [g.ids for g in made] == [encoder(tokenizer)(text) for text in texts]


@pytest.mark.parametrize("logprobs", ["none", "processed"])
def test_log_probabilities_that_are_not_the_models_are_none(start, prompts, logprobs):
    """Not given, or after temperature: NaN, and refused where they are needed."""
    server = start(logprobs=logprobs)
    made = server.open().generate(prompts, range(4), DRAWN)
    assert all(math.isnan(g.logprob) for g in made)
    with pytest.raises(EngineError, match=rf"{WHERE}.*no log-probabilities.*engine: hf"):
        server.open(logprobs=True)


def test_a_sum_without_the_end_token_is_none(start, prompts, waits):
    """Two log-probabilities for three tokens are no sum; who needs one gets an error."""
    server = start()
    engines = [server.open(), server.open(logprobs=True, attempts=2)]

    def change(choice):
        end_early(choice)
        choice["logprobs"]["token_logprobs"].pop()

    server.change = change
    assert math.isnan(engines[0].generate(prompts[:1], [0], GREEDY)[0].logprob)
    with pytest.raises(EngineError, match="left out the log-probability"):
        engines[1].generate(prompts[:1], [0], GREEDY)


def test_scoring_is_refused_unless_it_is_asked_for(start, prompts):
    with pytest.raises(EngineError, match=rf"{WHERE}.*engine: hf.*score: true"):
        start().open().score(prompts[:1], [[5]])


def test_a_server_that_does_not_score_says_so(start):
    """At the start, whether it refuses the field or passes over it."""
    with pytest.raises(EngineError, match=rf"{WHERE}.*HTTP 400.*prompt_logprobs.*engine: hf"):
        start(extras=False).open(score=True)
    server = start()
    server.change = lambda choice: choice.pop("prompt_logprobs", None)
    with pytest.raises(EngineError, match=rf"{WHERE}.*no prompt_logprobs.*engine: hf"):
        server.open(score=True)


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS = {
    "dropped": "drop",
    "cut": "half",
    "slow": "slow",
    "dripping": "drip",
    "no JSON": b"<html>busy</html>",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "empty": b"{}",
    "no choices": b'{"choices": []}',
    "two choices": b'{"choices": [{}, {}]}',
    "no ids": b'{"choices": [{"finish_reason": "stop", "text": "a"}]}',
    "strange ids": b'{"choices": [{"finish_reason": "stop", "text": "a", "token_ids": [1.5, true, -1]}]}',
    "too many ids": json.dumps({"choices": [{"finish_reason": "length", "token_ids": [5] * 13}]}).encode(),
    "429": (429, {"error": "slow down"}),
    "500": (500, b"\xff\xfe"),
    "503": (503, {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_tried_again(start, model, tokenizer, prompts, waits, fault):
    """One fault, one pause, and the answer that would have come without it."""
    server = start()
    engine = server.open(timeout=0.5 if fault in ("slow", "dripping") else 30)
    server.faults.append(FAULTS[fault])
    made = engine.generate(prompts[:1], [5], DRAWN)
    assert [g.ids for g in made] == [g.ids for g in inside(model, tokenizer).generate(prompts[:1], [5], DRAWN)]
    assert len(waits) == 1
    assert len(server.asked) == 2


@pytest.mark.parametrize("fault", FAULTS)
def test_what_stays_is_an_error(start, prompts, waits, fault):
    """After `attempts` tries, and no more; the server itself is there, so the next request is asked."""
    server = start()
    engine = server.open(attempts=2, timeout=0.3 if fault in ("slow", "dripping") else 30)
    server.broken = lambda body: FAULTS[fault]
    with pytest.raises(EngineError, match=rf"{WHERE}: .*after 2 attempts"):
        engine.generate(prompts[:1], [5], GREEDY)
    assert len(server.asked) == 2
    server.broken = None
    engine.address = engine._http.address = Address(server.url, "tiny", WHERE, timeout=30)
    assert engine.generate(prompts[:1], [5], GREEDY)


def test_pauses_double_with_jitter_up_to_a_limit(start, prompts, waits):
    """The n-th of them is 2^(n-1) s, times something from 0.5 to 1.5, from at most 60 s; no two runs wait alike."""
    server = start()
    engine = server.open(attempts=9)
    server.broken = lambda body: (503, {})
    for _ in range(2):
        with pytest.raises(EngineError):
            engine.generate(prompts[:1], [5], GREEDY)
    assert len(waits) == 16
    for index, wait in enumerate(waits):
        assert 0.5 * min(60, 2 ** (index % 8)) <= wait <= 1.5 * min(60, 2 ** (index % 8))
    assert waits[:8] != waits[8:]


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("7", 7, 7),
        (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True), 80, 91),
        ("soon", 0.5, 1.5),
        ("-5", 0.5, 1.5),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.5, 1.5),
    ],
)
def test_retry_after_is_honoured(start, prompts, waits, status, said, least, most):
    """Seconds or a date; what is neither, or is past, gives the usual first pause of 1 s."""
    server = start()
    engine = server.open()
    server.faults.append((status, {}, {"Retry-After": said() if callable(said) else said}))
    engine.generate(prompts[:1], [5], GREEDY)
    assert len(waits) == 1
    assert least <= waits[0] <= most


def test_a_server_that_asks_for_an_hour_is_given_up(start, prompts, waits):
    server = start()
    engine = server.open()
    server.faults.append((429, {}, {"Retry-After": "3600"}))
    with pytest.raises(EngineError, match=r"wait 3,600 s: run again then"):
        engine.generate(prompts[:1], [5], GREEDY)
    assert waits == []


def test_a_request_that_the_server_refuses_is_not_tried_again(start, prompts, waits):
    """HTTP 400, such as a prompt over the context: the same comes again."""
    server = start()
    engine = server.open()
    server.faults.append((400, {"error": {"message": "maximum context length is 8"}}))
    with pytest.raises(EngineError, match=r"HTTP 400.*maximum context length is 8"):
        engine.generate(prompts[:1], [5], GREEDY)
    assert len(server.asked) == 1
    assert engine.generate(prompts[:1], [5], GREEDY)


def test_no_answer_is_asked_for_twice(start, prompts, waits):
    """One bad row of a batch: the others' answers are there when they are asked again, alone, and forgotten after that."""
    server = start()
    engine = server.open(attempts=1)
    server.broken = lambda body: (500, {}) if body["prompt"] == prompts[2] else None
    with pytest.raises(EngineError):
        engine.generate(prompts, range(4), GREEDY)
    assert [g.finish_reason for g in engine.generate(prompts[:2], range(2), GREEDY)] == [FinishReason.LENGTH] * 2
    assert engine.generate(prompts[3:], [3], GREEDY)
    assert Counter(tuple(body["prompt"]) for body in server.asked) == Counter(map(tuple, prompts))
    assert engine._kept == {}


def test_a_server_that_went_away_is_not_waited_for_by_every_row(start, prompts, waits):
    """The batch it went away in waits for its attempts; every further call fails at once."""
    server = start()
    engine = server.open(attempts=3, concurrency=1)
    server.stop()
    with pytest.raises(EngineError, match="Start the server"):
        engine.generate(prompts, range(4), GREEDY)
    assert len(waits) == 2
    with pytest.raises(EngineError, match="Start the server"):
        engine.generate(prompts[:1], [0], GREEDY)
    assert len(waits) == 2


def test_no_more_requests_run_at_once_than_allowed(start, prompts):
    server = start()
    engine = server.open(concurrency=3)
    server.hold = 0.1
    engine.generate(prompts * 3, range(12), GREEDY)
    assert server.most == 3


# --- at the start -----------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def test_a_closed_port_is_named(start):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        EngineError, match=rf"{WHERE}: no answer .*Start the server, or correct {WHERE}\.url in machine\.yaml"
    ):
        start().open(url=url, attempts=1)


@pytest.mark.parametrize(
    ("options", "how", "words"),
    [
        ({}, {"model": "big"}, r"does not serve 'big' but 'tiny': .*--served-model-name big.*engines\.planner\.model"),
        ({"names": ()}, {}, r"does not serve 'tiny' but nothing"),
        ({"key": KEY}, {}, r"refused the key \(HTTP 401\): set key_env or key_file"),
        ({"key": KEY}, {"key": "sk-other"}, r"refused the key \(HTTP 401\): check the key"),
    ],
)
def test_a_server_that_will_not_do_is_refused_at_the_start(start, options, how, words):
    with pytest.raises(EngineError, match=rf"{WHERE}: .*{words}"):
        start(**options).open(**how)


def test_an_address_that_is_none_of_a_model_server_is_refused(start):
    server = start()
    with pytest.raises(EngineError, match=rf"no /v1/models at the server \(HTTP 404.*{WHERE}\.url"):
        server.open(url=server.url + "/elsewhere")


def test_another_tokenizer_is_refused(start):
    """The server cuts the same text into other tokens: its ids would mean other words here."""
    server = start()
    server.change = lambda choice: choice["prompt_token_ids"].reverse()
    with pytest.raises(EngineError, match=r"tokenizer is another"):
        server.open()


# --- roles and stages -------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch, model, tokenizer):
    """Two tasks and a planner's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER_KEY", KEY)
    TASKS.write(layout.TRAIN_TASKS, [task(name, text=f"How many {name}?") for name in ("apples", "coins")], {})
    DEMOS.write(layout.demos("planner"), [demo("d", subgoals="Subgoal 1: Add 5 to 4")], {})
    folder = layout.model("planner", "0")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tmp_path


def machine_yaml(place, role, **own):
    lines = [f"    {key}: {json.dumps(value)}\n" for key, value in ({"engine": "openai"} | own).items()]
    (place / "machine.yaml").write_text(f"device: cpu\nengines:\n  {role}:\n{''.join(lines)}", encoding="utf-8")


def sample_stage(root, place, scratch):
    everything = params.load(root / "params.yaml")
    how = everything.sample.model_copy(update={"k": 3, "max_new_tokens": 9})
    limits = everything.limits.model_copy(update={"min_distinct": 0, "min_diversity": 0.0})
    machine = machines.load(place).model_copy(update={"scratch": scratch})
    own = everything.model_copy(update={"sample": how, "limits": limits})
    return Stage("sample", own, machine, place, {"round": "1", "prev": "0"})


def everything_written(place):
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "machine.yaml")


def test_a_stage_samples_from_the_server_that_machine_yaml_names(place, start, root, stage_module, capsys):
    """The same plans as in process; a second run asks nothing again. No address in table or journal, no key anywhere."""
    target, run = layout.table("subgoals", "1"), stage_module("sample").run
    run(sample_stage(root, place, "a"), "1", "0")
    own = SUBGOALS.read(target)
    server = start(names=["models/planner/0"], key=KEY)
    machine_yaml(place, "planner", url=server.url, key_env="SERVER_KEY")
    for _ in range(2):
        run(sample_stage(root, place, "b"), "1", "0")
        made = SUBGOALS.read(target)
        assert made.drop("logprob").equals(own.drop("logprob"))
        np.testing.assert_allclose(made["logprob"], own["logprob"], atol=1e-4)
        assert len(server.asked) == 6
    facts = metadata(target)["facts"]
    assert (facts["engine"], facts["server_model"], facts["ids"]) == ("openai", "models/planner/0", "server")
    kept = b"".join(path.read_bytes() for path in (place / "b" / "journal").rglob("*.jsonl"))
    assert server.url.encode() not in target.read_bytes() + kept
    assert KEY.encode() not in everything_written(place)
    assert KEY not in "".join(capsys.readouterr())


def test_another_rounds_weights_are_refused(place, start, root, make_model, tokenizer):
    """Where the server's folder can be seen, it is compared; and by default each round asks for its own folder's name."""
    other = place / "models" / "other"
    make_model(1).save_pretrained(other)
    server = start(names=["tiny"], root=str(other))
    machine_yaml(place, "planner", url=server.url, model="tiny")
    stage = sample_stage(root, place, "s")
    with pytest.raises(EngineError, match=r"serves the model in .*other, which is not the one in models/planner/0"):
        runners.runner(stage, layout.model("planner", "0"), 0.0, "planner")
    machine_yaml(place, "planner", url=server.url)
    with pytest.raises(EngineError, match=r"does not serve 'models/planner/0'"):
        runners.runner(sample_stage(root, place, "s"), layout.model("planner", "0"), 0.0, "planner")


def test_an_adapter_is_known_on_its_server(place, start, root, make_model, tokenizer):
    """Served on its base, or exported: the round's. Another adapter, another base, or the base alone: refused.

    Its context is the base's.
    """
    base = layout.BASE_MODEL
    models.save(make_model(), base, {}, place / "models" / "planner" / "0")
    card = {"base": content_hash(base, "moat.json")}
    adapter, other = layout.model("planner", "1"), layout.model("planner", "2")
    for path, seed in ((adapter, 3), (other, 4)):
        models.save(adapters.fresh(make_model(), Lora(rank=4, alpha=8, dropout=0.0), seed), path, card)
    export("planner", "1", place / "exported")
    shutil.copytree(base, place / "tuned")
    (place / "tuned" / "config.json").write_text((base / "config.json").read_text() + " ")

    def served(folder, under=None):
        server = start(names=["tiny"], root=str(folder), base=under and str(under), longest=300)
        machine_yaml(place, "planner", url=server.url, model="tiny")
        return runners.runner(sample_stage(root, place, "s"), adapter, 0.0, "planner")

    assert [served(adapter, base).longest, served(place / "exported").longest] == [300, 300]
    assert served(place / "exported").identity == served(adapter, base).identity
    for folder, under in ((other, base), (base, None)):
        with pytest.raises(
            EngineError, match=r"which is not the one in models/planner/1: .*--lora-modules models/planner/1="
        ):
            served(folder, under)
    with pytest.raises(EngineError, match=r"models/planner/1 on .*tuned, which is not the one in models/planner/1"):
        served(adapter, place / "tuned")


def test_identity_is_the_model_and_never_the_way_to_it(place, start, root):
    """Two servers of one model are one; another name for it, or another revision, is another."""

    def identity(server, revision="", **own):
        machine_yaml(place, "planner", url=server.url, **own)
        stage = sample_stage(root, place, "s")
        return dict(runners.runner(stage, layout.model("planner", "0"), 0.0, "planner", revision=revision).identity)

    names = ["models/planner/0", "tiny"]
    first = identity(start(names=names))
    assert first == identity(start(names=names, key=KEY), key_env="SERVER_KEY", concurrency=2, timeout=9, attempts=1)
    others = [identity(start(names=names), model="tiny"), identity(start(names=names), revision="x")]
    others.append(identity(start(names=names, extras=False)))
    assert all(one != first for one in others)


def test_a_stage_that_scores_is_refused_before_it_works(place, start, root):
    """At the start, and not after an hour of generating; the reference model's scores come from this process anyway."""
    machine_yaml(place, "grounder", url=start().url, model="tiny")
    stage = sample_stage(root, place, "s")
    with pytest.raises(EngineError, match=r"engines\.grounder.*engine: hf.*score: true"):
        runners.runner(stage, layout.model("planner", "0"), 0.0, "grounder", scores=True)
    assert runners.runner(stage, layout.model("planner", "0"), 0.0).facts["engine"] == "hf"


def test_facts_of_different_engines_stand_apart():
    one, other = SimpleNamespace(facts={"engine": "hf"}), SimpleNamespace(facts={"engine": "openai"})
    assert runners.facts_of(planner=one, grounder=one) == {"engine": "hf"}
    assert runners.facts_of(planner=other, grounder=one) == {"engines": {"planner": other.facts, "grounder": one.facts}}


def test_a_judge_on_a_server_needs_a_tokenizer_here_and_no_weights(place, start, root, tokenizer, stage_module):
    """critique with kind llm: critic.judge is the tokenizer, machine.yaml says who answers; its context is the server's."""
    import copy

    own = copy.deepcopy(tokenizer)
    own.chat_template = TEMPLATE
    own.save_pretrained("judge")
    write_round(place, [(GOLD, "stop"), (WRONG, "stop")])
    server = start(names=["judge"], key=KEY, logprobs="none", longest=2000)
    (place / "key.txt").write_text(KEY + "\n")
    machine_yaml(place, "critic", url=server.url, key_file="key.txt")
    stage = stage_with(place, judge="judge", max_unparsed=1.0, **ASKS)
    stage.machine = machines.load(place)
    stage_module("critique").run(stage, "1")
    assert len(CRITIQUES.read(layout.table("critiques", "1"))) == 2
    assert {body["max_tokens"] for body in server.asked} == {ASKS["max_new_tokens"]}
    facts = metadata(layout.table("critiques", "1"))["facts"]
    assert facts["engines"]["critic"]["logprobs"] == "none"
    (place / "key.txt").unlink()
    assert KEY.encode() not in everything_written(place)
    assert len(server.asked) == 2
    server.about["max_model_len"] = 20
    (place / "key.txt").write_text(KEY)
    stage = stage_with(place, judge="judge", max_unparsed=1.0, **ASKS)
    stage.machine = machines.load(place)
    stage_module("critique").run(stage, "1")
    assert {"do not fit" in said for said in CRITIQUES.read(layout.table("critiques", "1"))["reason"]} == {True}


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"key_env": "NOT_SET"}, r"machine\.yaml: engines\.critic\.key_env: .*NOT_SET holds no key"),
        ({"key_file": "none.txt"}, r"machine\.yaml: engines\.critic\.key_file: none\.txt cannot be read"),
        ({"key_file": "empty.txt"}, r"machine\.yaml: engines\.critic\.key_file: empty\.txt holds no key"),
        ({"key_file": "two.txt"}, r"machine\.yaml: engines\.critic\.key_file: two\.txt holds no key: a key is one word"),
    ],
)
def test_a_key_that_is_not_there_is_named(tmp_path, own, said):
    """Where it was looked for, and never what was found."""
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "two.txt").write_text(f"{KEY}\n{KEY}\n")
    with pytest.raises(ParamsError, match=said) as caught:
        runners.read_key(RoleEngine(engine="openai", url="http://a", **own), tmp_path, "engines.critic")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("fault", ["echo", (400, {"error": f"bad key {KEY}"}), (404, {"error": KEY}), (500, KEY.encode())])
def test_a_server_that_repeats_the_key_gives_it_away_to_nobody(start, prompts, waits, fault):
    """Its text is quoted without the key."""
    server = start(key=KEY)
    engine = server.open(key=KEY, attempts=1)
    server.faults.append(fault)
    with pytest.raises(EngineError, match=r"HTTP \d+.*\[key\]") as caught:
        engine.generate(prompts[:1], [5], GREEDY)
    assert KEY not in str(caught.value) + repr(engine.address) + repr(caught.value)


def test_a_refused_key_is_not_quoted(start):
    """The stand-in repeats what it was sent."""
    with pytest.raises(EngineError, match="HTTP 401") as caught:
        start(key=KEY).open(key="sk-wrong-one")
    assert "sk-wrong-one" not in str(caught.value)


def test_a_redirect_is_not_followed(start, prompts):
    """A key goes to the server that machine.yaml names, and to no other."""
    server, other = start(), start(key="sk-never")
    engine = server.open(key=KEY)
    server.faults.append((307, {}, {"Location": other.url + "/v1/completions"}))
    with pytest.raises(EngineError, match="HTTP 307"):
        engine.generate(prompts[:1], [5], GREEDY)
    assert other.bodies == []


def test_no_role_is_one_in_process():
    """What machine.yaml does not name runs here."""
    own = Machine(engines={"critic": RoleEngine(engine="openai", url="http://a")})
    assert [own.role(role).engine for role in ("planner", "critic", "reader", None)] == ["hf", "openai", "hf", "hf"]
