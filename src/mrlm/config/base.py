"""Base class of config sections: a strict model whose errors are `ConfigError`s, and the types of
numbers and names of its fields."""

import typing
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mrlm.config.errors import InvalidConfig, problems_of

MOST = 10**12
"""Larger whole numbers are considered errors."""

Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Reference = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*([./-]\w+)*(:[A-Za-z_]\w*(\.\w+)*)?$")]
"""A plug-in by name, or `module:Name`."""
FileName = Annotated[str, Field(pattern=r"^[^/\\\x00]*[^/\\\x00.][^/\\\x00]*$", max_length=200)]
"""A valid name of a folder."""


class Section(BaseModel):
    """Base of all sections: strict, with wrong values reported as `ConfigError`s."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        validate_assignment=True,
        coerce_numbers_to_str=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    if not TYPE_CHECKING:  # type checkers read the fields themselves

        def __init__(self, /, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                name = type(self).__name__
                raise InvalidConfig(problems_of(error, type(self), name)) from None

        __init__.__pydantic_base_init__ = True  # sections inside sections report to the outermost

        def __setattr__(self, name: str, value: Any) -> None:
            try:
                super().__setattr__(name, value)
            except ValidationError as error:
                name = type(self).__name__
                raise InvalidConfig(problems_of(error, type(self), name)) from None

    def wrote(self, name: str) -> bool:
        """Whether a field was set, possibly to its default. Settings of an explicitly disabled
        feature (`evaluation.episodes: 0`) may be kept for later."""
        return name in self.model_fields_set

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: Any) -> Any:
        """Reject booleans for numbers; pydantic would convert `true` to 1."""
        field = cls.model_fields.get(info.field_name)
        if isinstance(value, bool) and field is not None and _numeric(field.annotation):
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return value


def _numeric(annotation: Any) -> bool:
    leaves = _leaves(annotation)
    return bool({int, float} & leaves) and bool not in leaves


def _leaves(annotation: Any) -> set[Any]:
    arguments = typing.get_args(annotation)
    if not arguments:
        return {annotation}
    if typing.get_origin(annotation) is Annotated:
        return _leaves(arguments[0])
    return set().union(*map(_leaves, arguments))


def listed(value: Any) -> Any:
    """A list from a list or a single value."""
    return [value] if isinstance(value, str) else value
