"""Every key of the configuration: its type, bounds, choices and default, as keys.txt beside this has them."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pretrain.config.data import DataConfig, DataSet, Source
from pretrain.config.run import Config
from pretrain.prepare.__main__ import PrepareFlags
from pretrain.prepare.cache.run import CacheFlags

BOUNDS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "pattern": "~",
    "minItems": "items>=",
    "maxItems": "items<=",
}


def kind_of(schema: dict[str, Any]) -> str:
    """Return the type of a key in JSON Schema on one line, with its bounds."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/")[-1]
    if "anyOf" in schema:
        return "|".join(map(kind_of, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "|".join(map(str, schema.get("enum", [schema.get("const")])))
    text = str(schema.get("type", "any"))
    text += "".join(f"{sign}{schema[name]}" for name, sign in BOUNDS.items() if name in schema)
    parts = schema.get("prefixItems") or [
        schema[name] for name in ("items", "propertyNames") if name in schema
    ]
    more = schema.get("additionalProperties")
    parts += [more] if isinstance(more, dict) else []
    return text + (f"[{', '.join(map(kind_of, parts))}]" if parts else "")


def lines_of(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema()
    sections = {model.__name__: schema} | schema.get("$defs", {})
    found = []
    for name, section in sections.items():
        for key, of in section["properties"].items():
            made = "required" if key in section.get("required", ()) else "made"  # by a function
            found.append(f"{name}.{key} {kind_of(of)} = {of.get('default', made)!r}")
    return found


def test_types_bounds_choices_and_defaults_are_those_that_recipes_and_runs_rely_on():
    models = (Config, DataConfig, Source, DataSet, PrepareFlags, CacheFlags)
    found = dict.fromkeys(line for model in models for line in lines_of(model))
    assert list(found) == Path(__file__).with_name("keys.txt").read_text("utf-8").splitlines()
