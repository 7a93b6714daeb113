"""What the OpenAPI document cannot say and schemathesis has to know.

- To JSON Schema `800.0` is an integer. The daemon takes whole numbers only as they are written: `800`.
- A wait of a minute is allowed, and nobody wants to wait for it here.
- `start` and `len` are each any number of 64 bits, but together must not go beyond the last one. Where
  range locks are broken there are both or none.
- A cursor of resources is a number; one of range locks is two, of 32 and 64 bits.
"""

import re

import schemathesis

WAIT_MS_MAX = 50
BYTES_MAX = 2**64


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict):
        case.body = within(name_by_name(case.body))
    if isinstance(case.query, dict):
        is_half = len({"start", "len"} & set(case.query)) == 1
        case.query = {} if is_half and case.operation.path.endswith("/locks") else within(case.query)
        if case.operation.path == "/v1/ranges" and is_cursor_of_another_list(case.query):
            del case.query["after"]


def name_by_name(body):
    return {name: wanted(name, value) for name, value in body.items()}


def is_cursor_of_another_list(query):
    cursor = re.fullmatch(r"(\d{1,10})(?:\.(\d{1,20}))?", str(query.get("after", "")), re.ASCII)
    if not cursor:
        return False
    slot, start = cursor.groups()
    is_of_locks = bool({"client", "owner"} & set(query))
    is_beyond = int(slot) >= 2**32 or int(start or 0) >= BYTES_MAX
    return is_of_locks == (start is None) or is_beyond


def within(fields):
    """The same with bytes that exist: to the end, if they would go beyond it."""
    try:
        start, length = int(fields["start"]), int(fields["len"])
    except (KeyError, TypeError, ValueError):
        return fields
    is_beyond = 0 <= start < BYTES_MAX and 0 < length < BYTES_MAX and start + length > BYTES_MAX
    return fields | {"len": type(fields["len"])(0)} if is_beyond else fields


def wanted(name, value):
    """The same value, written as the daemon reads it, and soon over."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_wait = name.lower() == "wait_ms" and isinstance(value, int) and not isinstance(value, bool)
    return value % WAIT_MS_MAX if is_wait and WAIT_MS_MAX < value <= 60_000 else value
