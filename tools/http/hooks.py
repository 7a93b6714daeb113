"""What the OpenAPI document cannot say and schemathesis has to know.

- To JSON Schema `800.0` is an integer. The daemon takes whole numbers only as they are written: `800`.
- A wait of a minute is allowed, and nobody wants to wait for it here.
- `start` and `len` are each any number of 64 bits, but together must not go beyond the last one. Where
  range locks are broken there are both or none.
"""

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


def name_by_name(body):
    return {name: wanted(name, value) for name, value in body.items()}


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
