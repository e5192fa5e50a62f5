"""Strict sections of YAML files, and what pydantic finds wrong in one, as the one line that a user is meant to read."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gatebench.errors import nearest


class Section(BaseModel):
    """Base of every section: unknown keys are refused, docstrings under fields become their descriptions."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_for_numbers(cls, content: Any) -> Any:
        """Refuse `lr: true`, which pydantic would read as 1."""
        for name, value in content.items() if isinstance(content, dict) else ():
            known = cls.model_fields.get(name)
            if isinstance(value, bool) and known is not None and known.annotation is not bool:
                section = cls.__name__.removesuffix("Config").lower()
                raise ValueError(f"{section}.{name}={str(value).lower()}: must not be true or false")
        return content


def one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first mistake of `error` as one line that names key, value and what would be legal."""
    first = error.errors()[0]
    # Members of a union stand in the location, too: data.mixture.dict[str,float].english
    location = [part for part in first["loc"] if isinstance(part, str) and "[" not in part]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        section = _section(model, location[:-1])
        return f"key '{key}' is unknown; {nearest(location[-1], section.model_fields)}"
    if first["type"] == "missing":
        return f"key '{key}' is missing, and has no default"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return message
    return f"{key}={first['input']!r}: {message[0].lower() + message[1:]}"


def _section(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for name in path:
        field = model.model_fields.get(name)
        annotation = field.annotation if field else None
        members = [member for member in get_args(annotation) if member is not type(None)]
        annotation = members[0] if len(members) == 1 else annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return model
        model = annotation
    return model
