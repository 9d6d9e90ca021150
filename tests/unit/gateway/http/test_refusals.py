"""Of all faults of a body its caller is told one: the deepest, and of a union's the bound before the type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from radixkv.gateway.http.refusals import refusal_of


class Red(BaseModel):
    type: Literal["red"]


class Blue(BaseModel):
    type: Literal["blue", "navy"]
    depth: int


class Body(BaseModel):
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    inner: list[dict[str, int]] | None = None
    colour: Literal["none"] | Annotated[Red | Blue, Field(discriminator="type")] | None = None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items"),
        ({"stop": 1, "inner": [{}, {"a": "x"}]}, "inner.1.a: Input should be a valid integer"),
        ({"stop": {}}, "stop: Input should be a valid list or a valid string"),
        ({"colour": {"type": "blue"}}, "colour.depth: Field required"),
        ({"colour": {"type": "green", "depth": 1}}, "colour.type: Input should be one of 'red', 'blue', 'navy'"),
        ({"colour": {}}, "colour.type: Field required"),
        ({"colour": "green"}, "colour: Input should be 'none'"),
    ],
)
def test_one_fault_is_told_whatever_the_order_in_which_they_are_found(body: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate(body)
    errors: list[dict[str, Any]] = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    assert len(errors) > 1
    for found in (errors, errors[::-1]):
        refusal = refusal_of(found, body)
        assert refusal.message.startswith(told)
        assert refusal.param == told.split(":", maxsplit=1)[0]
