"""Server-Sent Events: events are dispatched wherever the bytes are split, and written."""

import itertools
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamtool.core.sse import BOM, ServerSentEvent, SseReader, comment, encode


def read(*chunks: bytes, close: bool = True, **options) -> list[ServerSentEvent]:
    reader = SseReader(**options)
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + (reader.close() if close else [])


def dispatched(*chunks: bytes) -> list[tuple[str | None, bytes]]:
    return [(event.name, event.data) for event in read(*chunks, close=False)]


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


class TestLines:
    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
    def test_each_kind_of_newline_ends_a_line(self, end):
        assert dispatched(b"event: a" + end + b"data: 1" + end + end + b"data: 2" + end + end) == [
            ("a", b"1"),
            (None, b"2"),
        ]

    def test_a_crlf_split_across_chunks_is_one_newline(self):
        assert dispatched(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [(None, b"1\n2")]

    def test_a_cr_at_the_end_of_a_chunk_ends_its_line_immediately(self):
        assert dispatched(b"data: 1\r\r") == [(None, b"1")]

    def test_an_lf_after_a_cr_is_consumed_only_once(self):
        assert dispatched(b"data: 1\r", b"\n\n") == [(None, b"1")]

    def test_an_empty_chunk_between_cr_and_lf_changes_nothing(self):
        assert dispatched(b"data: 1\r", b"", b"\ndata: 2\n\n") == [(None, b"1\n2")]

    def test_unicode_line_separators_are_data(self):
        text = "a\u2028b\u2029c\x85d\x0be\x0c".encode()
        assert dispatched(b"data: " + text + b"\n\n") == [(None, text)]

    @pytest.mark.parametrize("cut", range(1, 12))
    def test_a_character_may_be_split_anywhere(self, cut):
        data = "data: aé€😀\n\n".encode()
        assert dispatched(data[: 6 + cut], data[6 + cut :]) == [(None, "aé€😀".encode())]


class TestFields:
    def test_exactly_one_space_is_removed(self):
        assert dispatched(b"data:1\n\ndata: 2\n\ndata:  3\n\n") == [(None, b"1"), (None, b"2"), (None, b" 3")]

    def test_data_lines_are_joined_by_lf(self):
        assert dispatched(b"data: 1\ndata: 2\ndata:\ndata: 3\n\n") == [(None, b"1\n2\n\n3")]

    def test_a_data_line_without_a_colon_is_an_empty_string(self):
        assert dispatched(b"data\n\ndata\ndata\n\n") == [(None, b""), (None, b"\n")]

    def test_an_event_without_data_is_dropped_with_its_name(self):
        assert dispatched(b"event: a\n\ndata: 1\n\n") == [(None, b"1")]

    def test_comments_and_unknown_fields_are_ignored(self):
        assert dispatched(b": hello\n\n: OPENROUTER PROCESSING\ndata: 1\nfoo: bar\n:x\n\n") == [(None, b"1")]

    def test_the_last_name_wins(self):
        assert dispatched(b"event: a\ndata: 1\nevent: b\n\n") == [("b", b"1")]

    def test_id_and_retry_are_ignored(self):
        assert dispatched(b"id: 7\nretry: 1500\ndata: 1\n\nid: a\0b\nretry: soon\n\n") == [(None, b"1")]


class TestBom:
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
    def test_a_bom_is_removed_at_the_very_start(self, size):
        assert dispatched(*in_pieces(BOM + b"data: 1\n\n", size)) == [(None, b"1")]

    def test_a_second_bom_is_part_of_the_field_name(self):
        assert dispatched(BOM + BOM + b"data: 1\n\ndata: 2\n\n") == [(None, b"2")]

    def test_an_incomplete_bom_yields_no_event(self):
        assert read(BOM[:2]) == []


class TestRaw:
    def test_raw_is_the_event_verbatim(self):
        assert read(b'data: {"a":1}\n\n') == [ServerSentEvent(None, b'{"a":1}', b'data: {"a":1}\n\n')]

    def test_raw_is_set_for_each_of_several_events_in_one_chunk(self):
        assert [event.raw for event in read(b"data: 1\n\ndata: 2\n\ndata: 3\n\n")] == [
            b"data: 1\n\n",
            b"data: 2\n\n",
            b"data: 3\n\n",
        ]

    @pytest.mark.parametrize("size", [1, 2, 11, 12, 100])
    def test_raw_includes_the_event_line(self, size):
        data = b'event: a\ndata: 1\n\nevent: b\ndata: {"x": "event: c"}\n\ndata: 2\n\n'
        assert read(*in_pieces(b": start\n\n" + data, size)) == [
            ServerSentEvent("a", b"1", b"event: a\ndata: 1\n\n"),
            ServerSentEvent("b", b'{"x": "event: c"}', b'event: b\ndata: {"x": "event: c"}\n\n'),
            ServerSentEvent(None, b"2", b"data: 2\n\n"),
        ]

    def test_raw_is_set_for_an_event_received_in_pieces(self):
        assert [event.raw for event in read(b"da", b"ta: 1", b"\n", b"\n")] == [b"data: 1\n\n"]

    @pytest.mark.parametrize(
        "data",
        [
            b"data:1\n\n",
            b"data: 1\r\n\r\n",
            b"data: 1\n\r\n",
            b"data: 1\r\r",
            b": c\ndata: 1\n\n",
            b"data: 1\n: c\n\n",
            b"event:a\ndata: 1\n\n",
            b"event: a\ndata:1\n\n",
            b"event: a\nevent: b\ndata: 1\n\n",
            b"event: \xc3\xa4\ndata: 1\n\n",
            b"data: 1\nevent: a\n\n",
            b"id: 1\ndata: 1\n\n",
            b"data: 1\ndata: 2\n\n",
            b"data: 1\nfoo\n\n",
        ],
    )
    @pytest.mark.parametrize("size", [1, 100])
    def test_raw_is_none_for_any_other_shape(self, data, size):
        assert [event.raw for event in read(*in_pieces(data, size))] == [None]

    def test_raw_is_set_again_after_a_separate_comment(self):
        assert [event.raw for event in read(b": c\n\ndata: 1\n\n\n\ndata: 2\n\n")] == [b"data: 1\n\n", b"data: 2\n\n"]


class TestTheEnd:
    def test_an_unterminated_event_of_json_is_dispatched(self):
        assert read(b'data: {"a":1}') == [ServerSentEvent(None, b'{"a":1}')]
        assert read(b'event: x\ndata: {"a":1}\n') == [ServerSentEvent("x", b'{"a":1}')]

    def test_an_unterminated_event_of_truncated_json_is_dropped(self):
        assert read(b'data: {"a":1') == []

    def test_other_final_data_may_be_configured(self):
        assert read(b"data: [DONE]") == []
        assert read(b"data: [DONE]", final=(b"[DONE]",)) == [ServerSentEvent(None, b"[DONE]")]

    def test_closing_after_a_complete_event_yields_nothing(self):
        reader = SseReader()
        assert len(reader.feed(b"data: 1\n\n")) == 1
        assert reader.close() == []


class TestLimit:
    def test_a_line_that_is_too_long_is_reported_without_raising(self):
        reader = SseReader(limit=10)
        assert [event.data for event in reader.feed(b"data: 1\n\n")] == [b"1"]
        assert reader.feed(b"data: 12345678") == []
        assert reader.error is not None
        assert reader.error.code == "event_too_long"
        assert reader.feed(b"\n\ndata: 2\n\n") == []
        assert reader.close() == []

    def test_data_lines_count_together(self):
        reader = SseReader(limit=10)
        for _ in range(5):
            reader.feed(b"data: 1\n")
        assert reader.error is None
        reader.feed(b"data: 1\n")
        assert reader.error is not None

    def test_comments_and_complete_events_do_not_count(self):
        reader = SseReader(limit=10)
        for _ in range(50):
            assert len(reader.feed(b": comment that is long\ndata: 12\n\n")) == 1
        assert reader.error is None


lines = st.one_of(
    st.sampled_from([b"data: 1", b"data:2", b"data", b"event: a", b": c", b"id: 1", b"retry: 5", b"foo: b", b"", b""]),
    st.binary(max_size=8).map(lambda data: b"data: " + data.replace(b"\r", b"").replace(b"\n", b"")),
)
streams = st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])), max_size=24).map(
    lambda pairs: b"".join(line + end for line, end in pairs)
)


def oracle(data: bytes) -> list[tuple[str | None, bytes]]:
    """Parse complete data with the standard's algorithm, implemented literally."""
    found, name, buffer = [], None, []
    for line in data.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        if line == b"":
            if buffer:
                found.append((name, b"\n".join(buffer)))
            name, buffer = None, []
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"data":
            buffer.append(value)
        elif field == b"event":
            name = value.decode()
    return found


@given(streams, st.booleans(), st.lists(st.integers(0, 200), max_size=8))
def test_any_split_dispatches_as_in_the_standard(data, bom, cuts):
    data = BOM + data if bom else data
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(borders)]
    assert dispatched(*pieces) == oracle(data)
    assert dispatched(*in_pieces(data, 1)) == oracle(data)
    whole, split = read(data), read(*pieces)
    assert whole == split


@given(st.one_of(st.none(), st.sampled_from(["ping", "é"])), st.text().map(str.encode))
def test_encoded_events_are_read_back(name, data):
    expected = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert [(event.name, event.data) for event in read(encode(name, data))] == [(name, expected)]


def test_events_are_written_with_their_blank_line():
    assert encode(None, b"{}") == b"data: {}\n\n"
    assert encode("ping", b"{}") == b"event: ping\ndata: {}\n\n"
    assert comment("keep-alive") == b": keep-alive\n\n"
    assert comment("a\nb") == b": a\n: b\n\n"


def per_piece(size: int) -> float:
    reader = SseReader()
    pieces = in_pieces(b'data: "' + b"x" * size + b'"\n\n', 10)
    began = time.thread_time()
    for piece in pieces:
        reader.feed(piece)
    return (time.thread_time() - began) / len(pieces)


def test_the_cost_of_a_piece_does_not_depend_on_the_buffered_length():
    """With 64 times as much buffered. A bad measurement is repeated, since other processes share the machine."""
    small = large = math.inf
    for _ in range(30):
        small, large = min(small, per_piece(1 << 14)), min(large, per_piece(1 << 20))
        if large < 3 * small:
            break
    assert large < 3 * small, f"{small * 1e6:.2f} µs, then {large * 1e6:.2f} µs per piece"
