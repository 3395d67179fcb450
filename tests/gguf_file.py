"""Reads, changes and writes GGUF files for the tests. Independent of butler's reader and writer."""
import struct

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110),
          12: (256, 144), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 30: (1, 2), 34: (256, 54), 35: (256, 66),
          39: (32, 17)}
ALIGNMENT = 32


class Gguf:
    """values: key -> (type, value), arrays as (ARRAY, (element type, list)); tensors: name -> (dims, type, bytes)."""

    def __init__(self, path=None):
        self.values, self.tensors = {}, {}
        if path:
            self._read(open(path, "rb").read())

    def _read(self, data):
        at = 0

        def take(form):
            nonlocal at
            value, = struct.unpack_from(form, data, at)
            at += struct.calcsize(form)
            return value

        def text():
            nonlocal at
            n = take("<Q")
            at += n
            return data[at - n:at]

        def value(kind):
            if kind == STRING:
                return text()
            if kind == ARRAY:
                element, n = take("<I"), take("<Q")
                return element, [value(element) for _ in range(n)]
            return take(SCALARS[kind])

        assert data[:4] == b"GGUF"
        at = 8
        n_tensors, n_values = take("<Q"), take("<Q")
        for _ in range(n_values):
            key, kind = text().decode(), take("<I")
            self.values[key] = (kind, value(kind))
        places = []
        for _ in range(n_tensors):
            name = text().decode()
            dims = [take("<Q") for _ in range(take("<I"))]
            places.append((name, dims, take("<I"), take("<Q")))
        start = -(-at // ALIGNMENT) * ALIGNMENT
        for name, dims, kind, offset in places:
            n = 1
            for d in dims:
                n *= d
            block, size = BLOCKS[kind]
            self.tensors[name] = (dims, kind, data[start + offset:start + offset + n // block * size])

    def write(self, path):
        def text(raw):
            raw = raw.encode() if isinstance(raw, str) else raw
            return struct.pack("<Q", len(raw)) + raw

        def value(kind, v):
            if kind == STRING:
                return text(v)
            if kind == ARRAY:
                return struct.pack("<IQ", v[0], len(v[1])) + b"".join(value(v[0], x) for x in v[1])
            return struct.pack(SCALARS[kind], v)

        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values))
        for key, (kind, v) in self.values.items():
            head += text(key) + struct.pack("<I", kind) + value(kind, v)
        size = 0
        for name, (dims, kind, data) in self.tensors.items():
            head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, size)
            size += len(data) + -len(data) % ALIGNMENT
        with open(path, "wb") as file:
            file.write(head + bytes(-len(head) % ALIGNMENT))
            for _, _, data in self.tensors.values():
                file.write(data + bytes(-len(data) % ALIGNMENT))

    def put(self, key, kind, value):
        self.values[key] = (kind, value)

    def put_tensor(self, name, dims, floats):
        self.tensors[name] = (dims, 0, struct.pack(f"<{len(floats)}f", *floats))
