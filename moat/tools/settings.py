"""What params.yaml says of the tools."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from moat.corpus import Encoder
from moat.params import Positive, Section


class QaTools(Section):
    """How the tools of `qa` find passages, and who reads them."""

    retriever: Literal["bm25", "dense"]
    encoder: str = Field(description="A sentence encoder, folder or hub id; read under dense alone.")
    encoder_revision: str = Field(description="The hub's commit, or a name for the folder's content.")
    found: Positive = Field(description="Passages that KnowledgeQuery gives at most, those of the title itself not counted.")
    passages: Positive = Field(description="Paragraphs that ParagraphRetrieve keeps.")
    wikipedia: bool = Field(description="Whether KnowledgeQuery asks the live Wikipedia instead of the corpus.")
    reader: str = Field(description="The model that answers QA, folder or hub id; empty: QA gives no result.")
    reader_revision: str = Field(description="The hub's commit, or a name for the folder's content.")
    prompt: Literal["chat", "plain"]
    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    max_new_tokens: Positive

    @model_validator(mode="after")
    def _models_are_named(self) -> Self:
        if self.retriever == "dense" and not (self.encoder and self.encoder_revision):
            raise ValueError(
                "retriever dense needs a sentence encoder: set encoder to a model folder or a hub id, and encoder_revision "
                "to the hub's commit (for a folder, to a name that changes when its content does)"
            )
        if self.reader and not self.reader_revision:
            raise ValueError(
                "reader is set: set reader_revision to the hub's commit, or for a folder to a name that changes when its "
                "content does"
            )
        return self

    def open_encoder(self) -> Encoder | None:
        """The sentence encoder, or None under bm25. Raises JudgeError or CorpusError with the remedy."""
        if self.retriever == "bm25":
            return None
        from moat.encoder import open_encoder  # torch: only where there is a model
        from moat.judge_engine import folder_of

        return open_encoder(folder_of(self.encoder, self.encoder_revision, "tools.qa.encoder"))
