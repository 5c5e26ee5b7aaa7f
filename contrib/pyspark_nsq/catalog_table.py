"""Tables of Spark's catalog: `CREATE TABLE t USING nsq OPTIONS (...)`.

Spark asks for the schema when such a table is created, and passes the properties of the table; when the table is read,
it passes the schema, but no OPTIONS (Spark 4.3, PythonTable). So the schema keeps them, in the metadata of its first
column. A frame that is made of the table has that metadata too, and may be saved with it: it must not have secrets.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructType

from pyspark_nsq.errors import OptionError

_KEY = "nsq.options"


def is_table(properties: Mapping[str, str]) -> bool:
    """Returns True if Spark passes the properties of a table, and not the options of a frame."""
    return "provider" in properties


def own_options(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the OPTIONS of a table, and LOCATION as `path`; the options of a frame as they are.

    The properties have the OPTIONS twice, once with `option.` in front, TBLPROPERTIES, and what Spark adds (provider,
    owner, comment, collation, location, external, ...). A path without a location is in Spark's warehouse.
    """
    if not is_table(properties):
        return properties
    options = {key.lower()[7:]: value for key, value in properties.items() if key.lower().startswith("option.")}
    return options | ({"path": properties["path"]} if "location" in properties else {})


def schema_of(ddl: str) -> StructType:
    """Returns the schema whose columns and their types `ddl` names."""
    fields = [
        {"name": name, "type": {"INT": "integer"}.get(kind, kind.lower()), "nullable": True, "metadata": {}}
        for name, kind in map(str.split, ddl.split(", "))
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def schema_with(options: Mapping[str, str], ddl: str) -> StructType:
    """Returns the schema of a table, which keeps its options. Raises OptionError if one of them is secret."""
    for name in {"nsq.auth.secret", "nsq.nsqd.http.token"} & options.keys():
        raise OptionError(f"option {name!r} cannot be kept in a table: use a temporary view or spark.read")
    schema = schema_of(ddl)
    schema.fields[0].metadata = {_KEY: json.dumps(dict(options))}
    return schema


def table_options(schema: StructType) -> dict[str, str]:
    """Returns the options of the table that has the schema; none if it is of no table."""
    kept = (field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata)
    return dict(json.loads(next(kept, "{}")))
