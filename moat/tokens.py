"""The one renderer: (role, task, subgoals, actions) to token ids. SFT, DPO, sampling, scoring and evaluation all use it.

A prompt and a completion are encoded apart and joined as ids, so the ids that scoring conditions on are by construction
the ids that training saw (joined text could merge tokens across the boundary). Rules:

* `lumos`: one BOS at the start of the prompt when the tokenizer itself puts one there, none otherwise; `chat`: the special
  tokens of the model's own template and no others;
* a special token's name inside a task, a plan or actions is text, never the token;
* a completion ends with exactly one end token (the tokenizer's EOS), which SFT and DPO supervise;
* of a conversation of several turns (iterative planning) the last answer alone is supervised; each ends with the end token;
* nothing is truncated: a row over the length limit is the caller's to drop and count (`Example.__len__`).

Formats: `lumos` is plain text turns, as in the public Lumos data (reference: the authors' data files); `chat` is the
model's own chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal

from moat.turns import Done, planned, shown, told

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Format = Literal["lumos", "chat"]

PLANNER_INSTRUCTION = "Write a plan of subgoals that solves the task."
GROUNDER_INSTRUCTION = "Turn the subgoals into actions. Use only these actions:"
PLANNER_STEP_INSTRUCTION = "Plan the task one subgoal at a time."
GROUNDER_STEP_INSTRUCTION = "Turn each subgoal into actions. Use only these actions:"
PLACEHOLDER = "[[content]]"  # where the chat template puts the text
USER, ASSISTANT = "<|user|>\n", "\n<|assistant|>\n"
TASK, ENVIRONMENT, TO_GROUND = "\nTask: ", "; Initial Environment Description: None.", "\nSubgoals to be grounded: "
STEP_TO_GROUND = "Subgoal to be grounded: "


class Role(StrEnum):
    """The two agents that are trained together."""

    PLANNER = "planner"
    GROUNDER = "grounder"


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its completion as token ids; the completion ends with the end token and is what is supervised."""

    prompt: list[int]
    completion: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns of two sides as token ids; `supervised` says of each whether it is learned from."""

    turns: list[list[int]]
    supervised: list[bool]

    def __len__(self) -> int:
        return sum(map(len, self.turns))

    @property
    def ids(self) -> list[int]:
        """All ids."""
        return [token for turn in self.turns for token in turn]

    @property
    def mask(self) -> list[bool]:
        """Of every id, whether it is learned from."""
        return [learned for turn, learned in zip(self.turns, self.supervised, strict=True) for _ in turn]


class TokenizerError(ValueError):
    """A tokenizer that cannot render; the message names it and what to do."""


class Renderer:
    """Turns tasks, plans and actions into token ids for one tokenizer and one format.

    Raises TokenizerError when the tokenizer has no end token, or under `format="chat"` no chat template that can be used.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, format: Format) -> None:
        if tokenizer.eos_token_id is None:
            raise TokenizerError(f"the tokenizer of {tokenizer.name_or_path} has no EOS token: no answer could ever end")
        if format == "chat" and not tokenizer.chat_template:
            raise TokenizerError(
                f"the tokenizer of {tokenizer.name_or_path} has no chat template: set `format: lumos` in params.yaml"
            )
        self.tokenizer = tokenizer
        self.format = format
        self.end: int = tokenizer.eos_token_id
        first = tokenizer("a").input_ids[:1]
        self._bos: list[int] = first if first == [tokenizer.bos_token_id] else []
        self._special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._frame = cache(self._template)
        self._known = lru_cache(maxsize=1 << 16)(self._encode)  # conversations say the same again and again
        if format == "chat":
            self._frame(1)  # a template that cannot be used is refused here

    def _template(self, turns: int) -> list[str]:
        """What the chat template writes around the texts of `turns` user turns and the assistant's between them."""
        roles = ["user", "assistant"] * turns
        messages = [{"role": role, "content": PLACEHOLDER} for role in roles[: 2 * turns - 1]]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        parts = text.split(PLACEHOLDER)
        if len(parts) != len(messages) + 1:
            raise TokenizerError(
                f"the chat template of {self.tokenizer.name_or_path} writes the {len(messages)} text(s) of a conversation "
                f"{len(parts) - 1} times, not once each: set `format: lumos` in params.yaml"
            )
        return parts

    def _encode(self, text: str) -> list[int]:
        """Ids of `text` as data: no BOS, no EOS, and a special token's name in it is ordinary text."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        return ids

    def _prompt(self, *texts: str) -> list[int]:
        """Ids of a conversation: the user's texts and the assistant's between them, in turns; the user's is the last."""
        if self.format == "lumos":
            ids = self._bos + self._encode(USER + texts[0] + ASSISTANT)
            for answer, question in zip(texts[1::2], texts[2::2], strict=True):
                ids += [*self.completion(answer), *self._encode("\n" + USER + question + ASSISTANT)]
            return ids
        frame = self._frame((len(texts) + 1) // 2)
        if not any(name in text for name in self._special for text in texts):  # the ids that the model's own template gives
            whole = frame[0] + "".join(text + after for text, after in zip(texts, frame[1:], strict=True))
            return list(self.tokenizer(whole, add_special_tokens=False).input_ids)
        # Special tokens are the template's own and never the text's: the parts are encoded apart.
        ids = list(self.tokenizer(frame[0], add_special_tokens=False).input_ids)
        for text, after in zip(texts, frame[1:], strict=True):
            ids += [*self._encode(text), *self.tokenizer(after, add_special_tokens=False).input_ids]
        return ids

    def conversation(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each turn of a conversation: the user's texts and the assistant's, in turns, the user's first.

        Joined they are the conversation; what stands around the texts is in the user's turns, and an assistant's turn ends
        with the end token. So joined up to a user's turn they are a prompt, and a longer conversation begins with the ids of
        a shorter one. A special token's name in a text is ordinary text; an empty answer is its end token.
        """
        if self.format == "lumos":
            asked = [self._known("\n" * bool(number) + USER + text + ASSISTANT) for number, text in enumerate(texts[::2])]
            asked[0] = self._bos + asked[0]
        else:
            around = self._around((len(texts) + 1) // 2)
            asked = [[*before, *self._known(text), *after] for text, (before, after) in zip(texts[::2], around, strict=True)]
        answered = [[*self._known(text), self.end] for text in texts[1::2]]
        return [(answered if number % 2 else asked)[number // 2] for number in range(len(texts))]

    def _around(self, turns: int) -> list[tuple[list[int], list[int]]]:
        """What the chat template writes before and after each of the user's texts, without the assistant's end tokens.

        Raises TokenizerError for a template that ends the assistant's turns in another way.
        """
        frame = [list(self.tokenizer(part, add_special_tokens=False).input_ids) for part in self._frame(turns)]
        for number in range(2, len(frame) - 1, 2):
            if frame[number][:1] != [self.end]:
                raise TokenizerError(
                    f"the chat template of {self.tokenizer.name_or_path} does not end the assistant's turns with the EOS "
                    f"token ({self.tokenizer.eos_token}): set `format: lumos` in params.yaml, or the tokenizer's eos_token"
                )
            frame[number] = frame[number][1:]
        return list(zip(frame[::2], frame[1::2], strict=True))

    def planner_prompt(self, task: str, history: Sequence[Done] | None = None) -> list[int]:
        """Ids that a plan for `task` follows; with a history (empty on the first turn), that the next subgoal follows."""
        if history is None:
            return self._prompt(PLANNER_INSTRUCTION + TASK + task + ENVIRONMENT)
        texts = [PLANNER_STEP_INSTRUCTION + TASK + task + ENVIRONMENT]
        for number, turn in enumerate(history, 1):
            texts += [planned(number, turn.subgoal), told(number, turn.result)]
        return self._prompt(*texts)

    def grounder_prompt(self, task: str, tools: str, subgoals: str, history: Sequence[Done] | None = None) -> list[int]:
        """Ids that the actions for `subgoals` follow; `tools` is the action list with its documentation.

        With a history `subgoals` is one subgoal, and the turns before it and their results stand before it.
        """
        if history is None:
            return self._prompt(f"{GROUNDER_INSTRUCTION} {tools}{TASK}{task}{TO_GROUND}{subgoals}")
        lead, texts = f"{GROUNDER_STEP_INSTRUCTION} {tools}{TASK}{task}\n", []
        for number, turn in enumerate(history, 1):
            texts += [lead + STEP_TO_GROUND + turn.subgoal, turn.actions]
            lead = f"The executed result for Subgoal {number} is {shown(turn.result)}.\n"
        return self._prompt(*texts, lead + STEP_TO_GROUND + subgoals)

    def completion(self, text: str) -> list[int]:
        """Ids of an answer, with its end token. Raises ValueError on an empty answer."""
        ids = self._encode(text)
        if not ids:
            raise ValueError("an empty completion has no tokens to train on or to score")
        return [*ids, self.end]

    def planner_example(self, task: str, subgoals: str, history: Sequence[Done] | None = None) -> Example:
        """What the planner is trained on."""
        return Example(self.planner_prompt(task, history), self.completion(subgoals))

    def grounder_example(
        self, task: str, tools: str, subgoals: str, actions: str, history: Sequence[Done] | None = None
    ) -> Example:
        """What the grounder is trained on, and scored with."""
        return Example(self.grounder_prompt(task, tools, subgoals, history), self.completion(actions))

    def decode(self, ids: list[int]) -> str:
        """Text of generated ids, without the end token."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
