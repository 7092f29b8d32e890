"""Damage: bytes as disks and cut transfers damage them, values as a careless or malicious editor would write them."""

import json
import random
from collections.abc import Sequence
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**64), 10**30, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("nan"),
    "", "x", "none", "kl", "1", "../../../tmp/escaped", "/etc/passwd", "<script>alert(1)</script>", "$\\frac{1}{0}$",
    "\ud800", "\x00", "\u202e", "é" * 300, "a" * 100_000, "__class__", "eval", "os.system('true')", "%s%n", "{0}",
    [], {}, [[]], [None], [0] * 50, [1, "a"], {"a": 1}, {"": None}, {"__reduce__": ["os.system", "true"]},
)  # fmt: skip
TOKENS: tuple[bytes, ...] = (
    b"null", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b"\n", b"\n\n", b"\r\n", b"{}", b"[]", b'"', b"\\u0000", b"\\ud800", b"<!--", b"</script>",
    b"true", b"-1", b"=", b"]", b"}",
)  # fmt: skip


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four damages anywhere."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _damage(data, rng)
    return data


def _damage(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((0, 1, 2, 8, 100, 10_000)))
    match rng.randrange(8):
        case 0:
            return data[:start]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:start] + data[start:end] * 2 + data[end:]
        case 3:
            return data[:start] + rng.choice(TOKENS) + data[end:]
        case 4:
            return data[:start] + rng.randbytes(end - start) + data[end:]
        case 5:
            return data[:start] + bytes(end - start) + data[end:]
        case 6 if data:
            place = min(start, len(data) - 1)
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case _:
            return data[end:] + data[:start]


def of_value(value: Any, rng: random.Random) -> Any:
    """A copy of a value as JSON has them, with one thing in it exchanged, taken out, doubled or renamed."""
    value = json.loads(json.dumps(value))
    places = list(_places(value))
    if not places:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    match rng.randrange(10):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[str(rng.choice(VALUES))[:50]] = holder.pop(key)
        case 1 | 2 if isinstance(holder, list):
            holder.insert(key, rng.choice((holder[key], *VALUES)))
        case 3:
            other, place = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
        case 4 if type(holder[key]) in (int, float):
            holder[key] = rng.choice(
                (-holder[key], holder[key] + 1, holder[key] * 1e6, holder[key] / 3, str(holder[key]))
            )
        case _:
            holder[key] = rng.choice(VALUES)
    return value


def _places(value: Any) -> Sequence[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in items:
        found.append((value, key))
        found += _places(item)
    return found


def of_json(data: bytes, rng: random.Random) -> bytes:
    """A JSON document, damaged in its bytes or in its values."""
    if rng.random() < 0.3:
        return of_bytes(data, rng)
    changed = of_value(json.loads(data), rng)
    if rng.random() < 0.2:
        changed = of_value(changed, rng)
    return json.dumps(changed).encode("utf-8", "surrogatepass")


def of_lines(data: bytes, rng: random.Random) -> bytes:
    """A file of JSON lines: bytes, one line's values, or the order of the lines."""
    if rng.random() < 0.3:
        return of_bytes(data, rng)
    lines = data.splitlines()
    place = rng.randrange(len(lines))
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines)), lines.pop(place))
    else:
        lines[place] = of_json(lines[place], rng)
    return b"\n".join(lines) + rng.choice((b"\n", b"\n", b"", b"\n\n"))


def of_toml(data: bytes, rng: random.Random) -> bytes:
    """A TOML file: bytes, or the value on one of its lines."""
    if rng.random() < 0.3:
        return of_bytes(data, rng)
    lines = data.decode().splitlines()
    place = rng.randrange(len(lines))
    key, equals, value = lines[place].partition("=")
    word = rng.choice(
        (json.dumps(rng.choice(VALUES)), rng.choice(("inf", "nan", "1979-05-27", "0x1F", "[[[", "'''", "{}")))
    )
    match rng.randrange(4):
        case 0:
            lines[place] = f"{key}{equals}{word}" if equals else f"[{word}]"
        case 1:
            lines[place] = f"{word} = {value or word}"
        case 2:
            lines.insert(place, f"{rng.choice(('seeds', 'tasks', 'methods', 'settings', 'x', 'mean_bound'))} = {word}")
        case _:
            lines.insert(rng.randrange(len(lines)), lines.pop(place))
    return "\n".join(lines).encode("utf-8", "surrogatepass")
