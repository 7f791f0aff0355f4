#!/usr/bin/env python3
"""A second implementation of `int8x-v1`, written from NUMERICS.md, held against the golden files.

    python3 compute/tests/golden/second.py [MODEL ...]

checks the explicit cases of every file, then the models named (default: one of each architecture)
from their GGUF files to the last bit of their logits. Plain Python, integers of any size, nothing
to install: it is slow, and it cannot wrap. Ends with 1 and the first difference if there is one.
"""

import json
import math
import struct
import sys
from operator import mul
from pathlib import Path

HERE = Path(__file__).parent
FIXTURES = HERE.parents[2] / "tests" / "fixtures"
ZERO = -128

# Section 1.


def rs(x, n):
    if n == 0:
        return x
    return (x + (1 << (n - 1))) >> n if 1 <= n <= 62 else 0


def bl(x):
    return x.bit_length()


def q15(x, y):
    return (x * y + (1 << 14)) >> 15


def clamp(x, b):
    return max(-b, min(b, x))


def hi(x, y):
    return (x * y) >> 16


# Section 2: block floats are (m, e), a row of them a list.


def encode(z, unit):
    p = max(map(abs, z))
    if p == 0:
        return [0] * 32, ZERO
    n = bl(p) - 15
    m = [clamp(rs(x, n), 32767) for x in z] if n > 0 else [x << -n for x in z]
    e = unit + n
    if e > 100:
        return [clamp(x << min(e - 100, 16), 32767) for x in m], 100
    return ([0] * 32, ZERO) if e < -100 else (m, e)


def encode_wide(z, unit):
    d = max(bl(max(map(abs, z))) - 30, 0)
    return encode([rs(x, d) for x in z], unit + d)


def add_block(x, y):
    top = max(x[1], y[1])
    if top == ZERO:
        return [0] * 32, ZERO

    def side(m, e):
        return [0] * 32 if top - e > 29 else [rs(v << 14, top - e) for v in m]

    return encode(list(map(sum, zip(side(*x), side(*y)))), top - 14)


def add(x, y):
    return list(map(add_block, x, y))


def scale(x, c):
    return [encode([v * c[0] for v in m], e + c[1]) for m, e in x]


def valid(x):
    for m, e in x:
        p = max(map(abs, m))
        normal = 1 << 14 <= p < 1 << 15 and -100 <= e <= 100
        if -32768 in m or not (normal or (p == 0 and e == ZERO)):
            return False
    return True


NOTHING = (0, -1000)


def norm(m, e):
    if m == 0:
        return NOTHING
    u = 64 - bl(m)
    return (m << u) >> 32, e + 32 - u


def times(x, y):
    return norm(x[0] * y[0], x[1] + y[1])


def plus(x, y):
    b, s = (x, y) if x[1] >= y[1] else (y, x)
    return norm(b[0] + (s[0] >> min(b[1] - s[1], 32)), b[1])


def short(x):
    return x[0] >> 17, x[1] + 17


def long_number(x):
    if not (math.isfinite(x) and x > 0):
        return NOTHING
    m, e = math.frexp(x)
    return norm(int(m * (1 << 53)), e - 53)


ONE = (1 << 16, -16)


def inverse_square_root(x):
    m, e = x
    if m == 0:
        return ONE
    o = e & 1
    # The largest r with r^2 a <= 2^62 is the root of the quotient, both cut.
    return math.isqrt((1 << 62) // (m >> o)), -((e + o) // 2) - 31


def q_of(m):
    p = max(map(abs, m))
    if p == 0:
        return [0] * len(m), 0
    v = (127 << 22) // p
    return [(x * v + (1 << 21)) >> 22 for x in m], p


class Vector:
    """Section 2, activation vector."""

    def __init__(self, x, f):
        x = x + [([0] * 32, ZERO)] * (len(x) % 2)
        top = max(e for _, e in x)
        self.q, self.a, s, h, self.bound = [], [], [], [], 0
        for m, e in x:
            q, p = q_of(m)
            a = rs(p * f[0], 16 + top - e)
            self.q.append(q)
            self.a.append(a)
            h += [sum(q[:16]), sum(q[16:])]
            s.append(sum(q))
            self.bound += a * sum(map(abs, q))
        self.sums, self.half_sums = s, h
        self.exponent = -400 if top == ZERO else top + f[1] + 16
        self.t, self.t_exponent, self.t_bound = self.weigh(s, 1)
        self.ht, self.ht_exponent, self.ht_bound = self.weigh(h, 2)
        self.flat = [v for q in self.q for v in q]

    def weigh(self, s, per):
        products = [self.a[i // per] * s[i] for i in range(len(s))]
        d = max(bl(max(map(abs, products))) - 15, 0)
        t = [clamp((x + ((1 << d) >> 1)) >> d, 32767) for x in products]
        return t, self.exponent + d, sum(map(abs, t))


# Section 3.


def encode_floats(bits):
    parts = []
    for b in bits:
        field, fraction = b >> 23 & 0xFF, b & 0x7FFFFF
        if field == 255:
            return None
        parts.append((b >> 31, fraction | (1 << 23 if field else 0), max(field, 1) - 150))
    tops = [bl(M) + E for _, M, E in parts if M]
    if not tops:
        return [0] * 32, ZERO
    u = max(tops) - 15
    m = []
    for sign, M, E in parts:
        # 2^(E - u), rounded half away from zero.
        v = M << (E - u) if E >= u else (M + (1 << (u - E - 1))) >> (u - E)
        m.append(-min(v, 32767) if sign else min(v, 32767))
    if u > 100:
        return [(x > 0) * 32767 - (x < 0) * 32767 for x in m], 100
    return ([0] * 32, ZERO) if u < -100 else (m, u)


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def hadamard_len(head):
    return min(head & -head, 256)


LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LN_2 = float.fromhex("0x1.62e42fefa39efp-1")
SQRT_2 = float.fromhex("0x1.6a09e667f3bcdp+0")
TAU = float.fromhex("0x1.921fb54442d18p+2")


def score_constant(attention_scale, head):
    return short(long_number(attention_scale * LOG2_E / 16129.0 / hadamard_len(head)))


def log2(x):
    m, p = math.frexp(x)
    m, p = m * 2, p - 1
    if m > SQRT_2:
        m, p = m / 2, p + 1
    s = (m - 1) / (m + 1)
    q, y = s * s, 0.0
    for n in range(23, 0, -2):
        y = y * q + 1 / n
    return p + 2 * s * y * LOG2_E


def exp2(y):
    w = math.floor(y + 0.5)
    t, z = (y - w) * LN_2, 1.0
    for n in range(14, 0, -1):
        z = 1 + t * z / n
    return math.ldexp(z, w)


def increments(base, dims, factors, linear):
    out = []
    for i in range(dims // 2):
        frequency = exp2(-log2(base) * (2 * i / dims))
        divisor = (factors[i] if factors else 1.0) * linear
        out.append(math.floor(frequency / divisor / TAU * 4294967296.0 + 0.5) % (1 << 32))
    return out


# Section 4.

V = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]

#        bytes, length, span, Q, d, m, b
TYPES = {
    "Q4_0": (18, 32, 32, 8, 0, None, 0),
    "Q4_1": (20, 32, 32, 15, 0, 2, 0),
    "Q5_0": (22, 32, 32, 16, 0, None, 0),
    "Q5_1": (24, 32, 32, 16, 0, 2, 0),
    "Q8_0": (34, 32, 32, 128, 0, None, 0),
    "IQ4_NL": (18, 32, 32, 128, 0, None, 0),
    "IQ4_XS": (136, 256, 32, 128, 0, None, 5),
    "Q2_K": (84, 256, 16, 3, 80, 82, 4),
    "Q3_K": (110, 256, 16, 4, 108, None, 5),
    "Q4_K": (144, 256, 32, 15, 0, 2, 6),
    "Q5_K": (176, 256, 32, 31, 0, 2, 6),
    "Q6_K": (210, 256, 16, 32, 208, None, 7),
    "F32": (4, 1, 32, 32767, None, None, 0),
    "F16": (2, 1, 32, 32767, None, None, 0),
    "BF16": (2, 1, 32, 32767, None, None, 0),
}


def nibbles(b):
    return [x & 15 for x in b] + [x >> 4 for x in b]


def signed(x):
    return x - 256 if x > 127 else x


def codes(kind, b):
    if kind == "Q4_0":
        return [x - 8 for x in nibbles(b[2:])]
    if kind == "Q4_1":
        return nibbles(b[4:])
    if kind in ("Q5_0", "Q5_1"):
        at = 2 if kind == "Q5_0" else 4
        fifth = int.from_bytes(b[at : at + 4], "little")
        return [x + 16 * (fifth >> i & 1) - 16 for i, x in enumerate(nibbles(b[at + 4 :]))]
    if kind == "Q8_0":
        return [signed(x) for x in b[2:]]
    if kind == "IQ4_NL":
        return [V[x] for x in nibbles(b[2:])]
    if kind == "IQ4_XS":
        return [V[x] for g in range(8) for x in nibbles(b[8 + 16 * g : 24 + 16 * g])]
    out = []
    for i in range(256):
        half, run, l = i // 128, i // 32 % 4, i % 32
        if kind in ("Q4_K", "Q5_K"):
            low = b[(16 if kind == "Q4_K" else 48) + 32 * (i // 64) + l] >> 4 * (i // 32 % 2) & 15
            out.append(low | (b[16 + l] >> i // 32 & 1) << 4 if kind == "Q5_K" else low)
        elif kind == "Q6_K":
            low = b[64 * half + 32 * (run % 2) + l] >> 4 * (run // 2) & 15
            out.append((low | (b[128 + 32 * half + l] >> 2 * run & 3) << 4) - 32)
        elif kind == "Q3_K":
            low = b[32 + 32 * half + l] >> 2 * run & 3
            out.append((low | (b[l] >> (4 * half + run) & 1) << 2) - 4)
        else:
            out.append(b[16 + 32 * half + l] >> 2 * run & 3)
    return out


def small_scale(kind, b, j):
    if kind == "Q2_K":
        return b[j] & 15, b[j] >> 4
    if kind == "Q3_K":
        s = b[96:108]
        return (s[j % 8] >> 4 * (j // 8) & 15 | (s[8 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32, 0
    if kind in ("Q4_K", "Q5_K"):
        s = b[4:16]
        if j < 4:
            return s[j] & 63, s[j + 4] & 63
        return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4
    if kind == "Q6_K":
        return signed(b[192 + j]), 0
    high = b[2] | b[3] << 8
    return (b[4 + j // 2] >> 4 * (j % 2) & 15 | (high >> 2 * j & 3) << 4) - 32, 0


def fit(x):
    p = max(map(abs, x))
    if p == 0:
        return [0] * len(x), -300

    def fraction(v, u):
        return (v << u, 127) if u >= 0 else (v, 127 << -u)

    u = 60
    while True:
        n, d = fraction(p, u)
        if n // d < 1 << 15:
            break
        u -= 1
    out = []
    for v in x:
        n, d = fraction(abs(v), u)
        m = min((2 * n + d) // (2 * d), 32767)
        out.append(-m if v < 0 else m)
    return out, -24 - u


def half(b, at):
    return struct.unpack_from("<e", b, at)[0]


class Row:
    def __init__(self, kind, data):
        """Raises ValueError with the number of a block that is not finite."""
        self.kind = kind
        size, length, self.span, self.Q, d_at, m_at, b = TYPES[kind]
        self.E = self.F = -300
        self.M = []
        if d_at is None:
            return self.floats(kind, data)
        blocks = [data[i : i + size] for i in range(0, len(data), size)]
        self.q = [x for block in blocks for x in codes(kind, block)]
        d = self.halves(blocks, d_at)
        self.S, self.E = fit(d)
        if m_at is not None:
            m = self.halves(blocks, m_at)
            if kind == "Q5_1":
                m = [m + 16 * d for m, d in zip(m, d)]
            elif b:
                m = [-m for m in m]
            self.M, self.F = fit(m)
            self.F += b
        self.E += b
        if b:
            count = length // self.span
            small = [small_scale(kind, block, j) for block in blocks for j in range(count)]
            up = 15 - b
            self.S = [q15(self.S[i // count], s << up) for i, (s, _) in enumerate(small)]
            if self.M:
                self.M = [q15(self.M[i // count], s << up) for i, (_, s) in enumerate(small)]

    @staticmethod
    def halves(blocks, at):
        out = []
        for i, block in enumerate(blocks):
            x = half(block, at)
            if not math.isfinite(x):
                raise ValueError(i)
            out.append(int(x * (1 << 24)))
        return out

    def floats(self, kind, data):
        bits = float_bits(kind, data)
        blocks = []
        for i in range(0, len(bits), 32):
            block = encode_floats(bits[i : i + 32])
            if block is None:
                raise ValueError(i // 32)
            blocks.append(block)
        top = max(e for _, e in blocks)
        self.q = [x for m, _ in blocks for x in m]
        self.S = [rs(16513, top - e) for _, e in blocks]
        self.E = -300 if top == ZERO else top - 21

    def embedded(self):
        top = max(self.E, self.F)
        z = []
        for i, q in enumerate(self.q):
            s = i // self.span
            x = rs((127 * self.S[s] * q) << 10, top - self.E)
            if self.M:
                x += rs((127 * self.M[s]) << 10, top - self.F)
            z.append(x)
        return [encode_wide(z[i : i + 32], top - 10) for i in range(0, len(z), 32)]

    # Section 5.

    def sums(self, x):
        D = N = 0
        span, q = self.span, x.flat
        for b, S in enumerate(self.S):
            at = b * span
            dot = sum(map(mul, self.q[at : at + span], q[at : at + span]))
            D += q15(S, x.a[at // 32]) * dot
        for M, t in zip(self.M, x.t if span == 32 else x.ht):
            N += M * t
        return D, N


def float_bits(kind, data):
    if kind == "F32":
        return list(struct.unpack(f"<{len(data) // 4}I", data))
    words = struct.unpack(f"<{len(data) // 2}H", data)
    if kind == "BF16":
        return [w << 16 for w in words]
    # Widened bit by bit, so that what is not finite stays so.
    out = []
    for w in words:
        sign, field, fraction = w >> 15 << 31, w >> 10 & 31, w & 1023
        if field == 31:
            out.append(sign | 0xFF << 23 | fraction << 13)
        else:
            value = struct.unpack("<e", struct.pack("<H", w & 0x7FFF))[0]
            out.append(sign | struct.unpack("<I", struct.pack("<f", value))[0])
    return out


def spare(b):
    return max(bl(b) - 29, 0)


class Matrix:
    def __init__(self, rows):
        self.rows = rows
        self.TOP = max(row.E for row in rows)
        self.MTOP = max(row.F for row in rows)
        self.has_min = TYPES[rows[0].kind][5] is not None

    def unit(self, x):
        row = self.rows[0]
        unit = x.exponent + 15 + self.TOP + spare(x.bound * row.Q)
        if self.has_min:
            e, bound = (x.t_exponent, x.t_bound) if row.span == 32 else (x.ht_exponent, x.ht_bound)
            unit = max(unit, e + self.MTOP + spare(bound * 32767))
        return unit

    def settle(self, row, D, N, x, unit):
        y = rs(D, unit - (x.exponent + 15) - row.E)
        if self.has_min:
            e = x.t_exponent if row.span == 32 else x.ht_exponent
            y += rs(N, unit - e - row.F)
        return y

    def times(self, x):
        unit = self.unit(x)
        return [self.settle(row, *row.sums(x), x, unit) for row in self.rows], unit


def blocks_of(y, unit):
    return [encode(y[i : i + 32], unit) for i in range(0, len(y), 32)]


# Section 6.


def rms_norm(x, w, epsilon):
    out = [encode(list(map(mul, xm, wm)), xe + we) for (xm, xe), (wm, we) in zip(x, w)]
    top = max(e for _, e in x)
    mean = NOTHING
    if top != ZERO:
        total = sum(
            sum(v * v for v in m) >> 2 * (top - e) for m, e in x if 2 * (top - e) < 40
        )
        mean = times(norm(total, 2 * top), per_count(32 * len(x)))
    return out, inverse_square_root(plus(mean, epsilon))


def per_count(n):
    return norm((1 << 63) // n, -63)


def applied(x, f):
    out = []
    for m, e in x:
        zero = e == ZERO
        out.append((m, e) if zero else encode([(v * f[0]) >> 1 for v in m], e + f[1] + 1))
    return out


# Section 7.


def exp2f(f):
    t = 3443 - hi(f, 428)
    t = 15658 - hi(f, t)
    t = 45410 - hi(f, t)
    return 65535 - hi(f, t)


def exp2n(t):
    w = t >> 16
    return 0 if w > 24 else (exp2f(t & 0xFFFF) << 8) >> w


def qs(x):
    s = hi(x, x)
    t = 5208 - hi(s, 285)
    t = 42330 - hi(s, t)
    t = 37407 - hi(s, t)
    return min((x + hi(x, t) + 1) >> 1, 32767)


def sine_cosine(phase):
    x = phase >> 14 & 0xFFFF
    r, d = qs(x), qs(min(65536 - x, 65535))
    return [(r, d), (d, -r), (-r, -d), (-d, r)][phase >> 30]


def sigmoid(negative, t):
    w, p = t >> 16, exp2f(t & 0xFFFF)
    v = (1 << 31) // (((1 << 24) + (p << 8 >> w)) >> 9)
    return ((p * v) >> 16, w) if negative else (v, 0)


def sh(x, n, most):
    n = max(-31, min(n, 31))
    return min(x << n if n > 0 else x >> -n, most)


def gate(kind, x, e):
    size = abs(x)
    if kind == "silu":
        t = sh(size * 47274, e + 1, (1 << 21) - 1)
    else:
        X = sh(size, e + 12, 32767)
        Y = X * X >> 12
        t = min(X * (9430 + (3373 * Y >> 15)) >> 8, (1 << 21) - 1)
    v, w = sigmoid(x < 0, t)
    y = size * v >> w
    return -y if x < 0 else y


def gated(kind, g, gu, u, uu):
    (G, ge), (U, ue) = encode(g, gu), encode(u, uu)
    B, be = encode([gate(kind, x, ge) >> 1 for x in G], ge - 15)
    return encode(list(map(mul, B, U)), be + ue)


# Section 8.


def settled(x, e):
    p = max(map(abs, x))
    if p == 0:
        return x, e
    n = bl(p) - 15
    return [clamp(rs(v, n), 32767) if n > 0 else v << -n for v in x], e + n


def rotated(x, turns, adjacent):
    x, n = list(x), len(turns)
    for i, (s, c) in enumerate(turns):
        a, b = (2 * i, 2 * i + 1) if adjacent else (i, i + n)
        u, v = x[a], x[b]
        x[a], x[b] = rs(u * c - v * s, 15), rs(u * s + v * c, 15)
    return x


def hadamard(x):
    x, H = list(x), hadamard_len(len(x))
    for start in range(0, len(x), H):
        step = 1
        while step < H:
            for i in range(start, start + H, 2 * step):
                for a in range(i, i + step):
                    x[a], x[a + step] = x[a] + x[a + step], x[a] - x[a + step]
            step *= 2
    return x


def head_of(row, start, length, treatment):
    """`treatment`: None for values, else (norm weights and epsilon or None, turns, adjacent)."""
    touched = row[start // 32 : -(-(start + length) // 32)]
    e = top = max(e for _, e in touched)
    x = []
    for i in range(start, start + length):
        m, own = row[i // 32]
        x.append(rs(m[i % 32], top - own))
    factor = ONE
    if treatment:
        normed, turns, adjacent = treatment
        if normed:
            w, epsilon = normed
            squares = norm(sum(v * v for v in x), 2 * e)
            factor = inverse_square_root(plus(times(squares, per_count(length)), epsilon))
            wt = max(we for _, we in w)
            x = [rs(v * w[i // 32][0][i % 32], wt - w[i // 32][1]) for i, v in enumerate(x)]
            x, moved = settled(x, 0)
            e += wt + moved
        x = hadamard(rotated(x, turns, adjacent))
    x, e = settled(x, e)
    q, p = q_of(x)
    P = p * factor[0]
    zero = [0] * length, (0, 0)
    if P == 0:
        return zero
    d = bl(P) - 15
    E = e + factor[1] + d
    if E > 100:
        return q, (32767, 100)
    return zero if E < -100 else (q, (P >> d, E))


def query_factor(s, constant):
    P = s[0] * constant[0]
    d = bl(P) - 15
    return (P >> d, s[1] + constant[1] + d) if P else (0, 0)


def score_scale(f, key):
    return q15(f[0], key[0]), max(-60, min(f[1] + key[1] + 31, 24))


def logit(dot, f, key):
    sm, se = score_scale(f, key)
    x = dot * sm
    return clamp(x << se if se >= 0 else x >> -se, 1 << 30)


def value_weight(p, s, top):
    return ((p >> min(top - s[1], 31)) * s[0]) >> 15 if s[0] else 0


def average(total, sums):
    d = bl(total) - 16
    v = (1 << 37) // (127 * (total >> d))
    return [(rs(x, d - 7) * v) >> 16 for x in sums]


def attend(q, f, keys, values):
    logits = [logit(sum(map(mul, q, k)), f, s) for k, s in keys]
    L = max(logits)
    p = [exp2n(L - x) for x in logits]
    top = max((s[1] for _, s in values if s[0]), default=-100)
    weights = [value_weight(p, s, top) for p, (_, s) in zip(p, values)]
    sums = [sum(w * v[i] for w, (v, _) in zip(weights, values)) for i in range(len(q))]
    return average(sum(p), sums), top - 13


# Section 9, over a GGUF file.

KINDS = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K",
         11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16"}


class File:
    """Metadata and tensors of a small GGUF file that is known to be sound."""

    def __init__(self, path):
        self.data = path.read_bytes()
        self.at = 8
        tensors, pairs = self.take("Q"), self.take("Q")
        self.meta = {}
        for _ in range(pairs):
            key = self.text()
            self.meta[key] = self.value(self.take("I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.text()
            shape = [self.take("Q") for _ in range(self.take("I"))]
            self.tensors[name] = shape, KINDS[self.take("I")], self.take("Q")
        align = self.meta.get("general.alignment", 32)
        self.base = -(-self.at // align) * align

    def take(self, form):
        (x,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return x

    def text(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(n)]
        return self.take("BbHhIif?xxQqd"[kind])

    def bytes(self, name):
        shape, kind, offset = self.tensors[name]
        size, length = TYPES[kind][:2]
        row = shape[0] // length * size
        rows = shape[1] if len(shape) > 1 else 1
        start = self.base + offset
        return kind, [self.data[start + i * row : start + (i + 1) * row] for i in range(rows)]

    def vector(self, name):
        kind, (data,) = self.bytes(name)
        bits = float_bits(kind, data)
        bits += [0] * (-len(bits) % 32)
        return [encode_floats(bits[i : i + 32]) for i in range(0, len(bits), 32)]

    def matrix(self, name):
        kind, rows = self.bytes(name)
        return Matrix([Row(kind, row) for row in rows])


class Model:
    def __init__(self, path):
        f = self.file = File(path)
        self.name = f.meta["general.architecture"]
        key = lambda k, default=None: f.meta.get(f"{self.name}.{k}", default)
        self.gemma = self.name == "gemma3"
        self.layers = key("block_count")
        self.width = key("embedding_length")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.head = key("attention.key_length", self.width // self.heads)
        self.epsilon = long_number(f32(key("attention.layer_norm_rms_epsilon")))
        self.constant = score_constant(f32(1 / f32(math.sqrt(self.head))), self.head)
        self.window = key("attention.sliding_window", 0) if self.gemma else 0
        self.pattern = key("attention.sliding_window_pattern", 6)
        self.local_base = key("rope.freq_base_swa", 10000.0)
        self.base = key("rope.freq_base", 10000.0)
        self.linear = key("rope.scaling.factor", 0.0) or 1.0
        self.factors = None
        if self.name == "llama" and "rope_freqs.weight" in f.tensors:
            data = f.bytes("rope_freqs.weight")[1][0]
            self.factors = list(struct.unpack(f"<{len(data) // 4}f", data))

    def is_local(self, l):
        if not self.window:
            return False
        if isinstance(self.pattern, list):
            return bool(self.pattern[l])
        return l % self.pattern < self.pattern - 1

    def embed(self, tokens):
        kind, rows = self.file.bytes("token_embd.weight")
        out = [Row(kind, rows[t]).embedded() for t in tokens]
        if self.gemma:
            c = short(long_number(f32(math.sqrt(self.width))))
            out = [scale(row, c) for row in out]
        return out

    def attention(self, l, rows):
        name, f = f"blk.{l}.", self.file
        w = f.vector(name + "attn_norm.weight")
        Q, K, VV, O = (f.matrix(name + f"attn_{x}.weight") for x in ("q", "k", "v", "output"))
        biases = [None] * 3
        if self.name == "qwen2":
            biases = [f.vector(name + f"attn_{x}.bias") for x in "qkv"]
        norms = [None, None]
        if self.name in ("qwen3", "gemma3"):
            norms = [(f.vector(name + f"attn_{x}_norm.weight"), self.epsilon) for x in "qk"]
        local = self.is_local(l)
        base, linear = (self.local_base, 1.0) if local else (self.base, self.linear)
        w_i = increments(base, self.head, self.factors, linear)
        keys = [[] for _ in range(self.kv_heads)]
        values = [[] for _ in range(self.kv_heads)]
        out = []
        for position, row in enumerate(rows):
            x = Vector(*rms_norm(row, w, self.epsilon))
            parts = []
            for matrix, bias in zip((Q, K, VV), biases):
                blocks = blocks_of(*matrix.times(x))
                parts.append(add(blocks, bias) if bias else blocks)
            turns = [sine_cosine(i * position % (1 << 32)) for i in w_i]
            adjacent = self.name == "llama"
            for h in range(self.kv_heads):
                at = h * self.head
                keys[h].append(head_of(parts[1], at, self.head, (norms[1], turns, adjacent)))
                values[h].append(head_of(parts[2], at, self.head, None))
            first = max(0, position + 1 - self.window) if local else 0
            numbers, units = [], []
            for h in range(self.heads):
                treatment = norms[0], turns, adjacent
                q, s = head_of(parts[0], h * self.head, self.head, treatment)
                kv = h // (self.heads // self.kv_heads)
                got, unit = attend(
                    q, query_factor(s, self.constant), keys[kv][first:], values[kv][first:]
                )
                numbers += got
                units += [unit] * self.head
            together = []
            for i in range(0, len(numbers), 32):
                top = max(units[i : i + 32])
                z = [rs(v, top - u) for v, u in zip(numbers[i : i + 32], units[i : i + 32])]
                together.append(encode(z, top))
            out.append(self.join(row, O, Vector(together, ONE), name + "post_attention_norm.weight"))
        return out

    def feed_forward(self, l, rows):
        name, f = f"blk.{l}.", self.file
        w = f.vector(name + "ffn_norm.weight")
        gate_, up, down = (f.matrix(name + f"ffn_{x}.weight") for x in ("gate", "up", "down"))
        kind = "gelu_tanh" if self.gemma else "silu"
        out = []
        for row in rows:
            x = Vector(*rms_norm(row, w, self.epsilon))
            (g, gu), (u, uu) = gate_.times(x), up.times(x)
            hidden = [
                gated(kind, g[i : i + 32], gu, u[i : i + 32], uu) for i in range(0, len(g), 32)
            ]
            out.append(self.join(row, down, Vector(hidden, ONE), name + "post_ffw_norm.weight"))
        return out

    def join(self, row, matrix, x, post):
        y = blocks_of(*matrix.times(x))
        if self.gemma:
            y = applied(*rms_norm(y, self.file.vector(post), self.epsilon))
        return add(row, y)

    def logits(self, rows):
        w = self.file.vector("output_norm.weight")
        tied = "output.weight" not in self.file.tensors
        matrix = self.file.matrix("token_embd.weight" if tied else "output.weight")
        for row in rows:
            y, unit = matrix.times(Vector(*rms_norm(row, w, self.epsilon)))
            for v in y:
                yield struct.unpack("<I", struct.pack("<f", math.ldexp(v, unit)))[0]


def fnv(numbers):
    h = 0xCBF29CE484222325
    for x in numbers:
        for byte in (x & (1 << 64) - 1).to_bytes(8, "little"):
            h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"{h:016x}"


def digest(rows):
    """Of several rows as one: all mantissas, then all exponents."""
    blocks = [block for row in rows for block in row]
    return fnv([v for m, _ in blocks for v in m] + [e for _, e in blocks])


def run(name, tokens):
    model = Model(FIXTURES / "gguf" / f"{name}.gguf")
    rows = model.embed(tokens)
    embedded, halves = digest(rows), []
    for l in range(model.layers):
        for half_block in (model.attention, model.feed_forward):
            rows = half_block(l, rows)
            halves.append(digest(rows))
    return {"embedded": embedded, "halves": halves, "logits": fnv(model.logits(rows))}


# The golden files.


def row_in(x):
    if "every m" in x:
        return [([x["every m"]] * 32, x["every e"])] * 5
    return [(x["m"][32 * i : 32 * i + 32], e) for i, e in enumerate(x["e"])]


def row_out(row):
    return {"m": [v for m, _ in row for v in m], "e": [e for _, e in row]}


def block_out(block):
    return {"m": block[0], "e": block[1]}


def pair_in(x):
    return x["m"], x["e"]


def pair_out(x):
    return {"m": x[0], "e": x[1]}


def token_out(x):
    return {"exponent": x.exponent, "t_exponent": x.t_exponent, "half_t_exponent": x.ht_exponent,
            "bound": x.bound, "t_bound": x.t_bound, "half_t_bound": x.ht_bound}


def vector_out(x):
    return {"q": x.flat, "a": x.a, "sums": x.sums, "half_sums": x.half_sums, "t": x.t,
            "half_t": x.ht, "token": token_out(x)}


def answer_float(i):
    block = encode_floats(i["bits"])
    if block is None:
        return {"refused": [b >> 23 & 255 for b in i["bits"]].index(255)}
    return block_out(block)


def every_row(kind, i):
    size, length = TYPES[kind][:2]
    data = bytearray([i["every byte"]] * (max(length, 64) // length * size))
    halves = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82),
              "Q3_K": (108,), "Q6_K": (208,), "F32": (2,)}.get(kind, (0,))
    for start in range(0, len(data), size):
        for at in halves:
            data[start + at : start + at + 2] = int(i["every half"], 16).to_bytes(2, "little")
    return bytes(data)


def answer_row(kind, i):
    try:
        row = Row(kind, bytes.fromhex(i["bytes"]) if "bytes" in i else every_row(kind, i))
    except ValueError as block:
        return {"refused": block.args[0]}
    if "bytes" not in i:
        return {"exponents": [row.E, row.F], "all": fnv([row.E, row.F] + row.S + row.M + row.q)}
    whole = {"span": row.span, "exponent": row.E, "scales": row.S, "min_exponent": row.F,
             "mins": row.M, "q": row.q}
    return {"row": whole, "embedded": row_out(row.embedded())}


def answer_matrix(kind, i):
    matrix = Matrix([Row(kind, bytes.fromhex(row)) for row in i["rows"]])
    x = Vector(row_in(i["x"]), pair_in(i["factor"]))
    sums = [row.sums(x) for row in matrix.rows]
    return {"token": token_out(x), "unit": matrix.unit(x), "dots": [D for D, _ in sums],
            "mins": [N for _, N in sums], "settled": matrix.times(x)[0]}


def answer_norm(i):
    product, f = rms_norm(row_in(i["x"]), row_in(i["w"]), pair_in(i["epsilon"]))
    return {"product": row_out(product), "factor": pair_out(f)}


def answer_head(case, i):
    treatment = None
    if not case.startswith("value"):
        turns = [sine_cosine(w * i["position"] % (1 << 32)) for w in i["increments"]]
        normed = None
        if "norm" in i:
            normed = row_in(i["norm"]["w"]), long_number(i["norm"]["epsilon"])
        treatment = normed, turns, "adjacent" in case
    q, s = head_of(row_in(i["x"]), i["start"], i["head"], treatment)
    return {"q": q, "scale": pair_out(s)}


def answer_rotation(case, i):
    turns = [sine_cosine(w * i["position"] % (1 << 32)) for w in i["increments"]]
    return {"pairs": [list(t) for t in turns], "turned": rotated(i["x"], turns, case == "adjacent")}


def answer_attend(i):
    heads = lambda all_: [(h["q"], pair_in(h["scale"])) for h in all_[i["first"] :]]
    out, unit = attend(i["q"], pair_in(i), heads(i["keys"]), heads(i["values"]))
    return {"average": out, "unit": unit}


def through_norm(i):
    y = rms_norm(row_in(i["y"]), row_in(i["w"]), long_number(1e-6))
    return row_out(add(row_in(i["residual"]), applied(*y)))


def double(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


ANSWERS = {
    "round_shift": lambda i: rs(i["x"], i["n"]),
    "round_shift_32": lambda i: rs(i["x"], i["n"]) if i["n"] < 31 else 0,
    "bit_length": bl,
    "mul_q15": lambda i: q15(i["x"], i["y"]),
    "encode": lambda i: row_out([encode(i["z"], i["unit"])]),
    "encode_wide": lambda i: block_out(encode_wide(i["z"], i["unit"])),
    "encode_floats": answer_float,
    "add": lambda i: row_out(add(row_in(i["x"]), row_in(i["y"]))),
    "scale": lambda i: row_out(scale(row_in(i["x"]), pair_in(i))),
    "apply": lambda i: row_out(applied(row_in(i["x"]), pair_in(i["factor"]))),
    "check": lambda i: len(i["m"]) == 32 * len(i["e"]) and valid(row_in(i)),
    "Positive::new": lambda i: pair_out(norm(i["m"], i["e"])),
    "Positive::from_f64": lambda i: pair_out(long_number(double(i["bits"]))),
    "times": lambda i: pair_out(times(pair_in(i["x"]), pair_in(i["y"]))),
    "plus": lambda i: pair_out(plus(pair_in(i["x"]), pair_in(i["y"]))),
    "short": lambda i: pair_out(short(pair_in(i))),
    "inverse_square_root": lambda i: pair_out(inverse_square_root(pair_in(i))),
    "reciprocal": lambda i: pair_out(per_count(i)),
    "rms_norm": answer_norm,
    "exp2_fraction": exp2f,
    "exp2_negative": exp2n,
    "sine_cosine": lambda i: list(sine_cosine(i)),
    "sigmoid": lambda i: dict(zip(("m", "down"), sigmoid(i["negative"], i["t"]))),
    "silu": lambda i: gate("silu", i["x"], i["e"]),
    "gelu_tanh": lambda i: gate("gelu_tanh", i["x"], i["e"]),
    "quantise_block": lambda i: dict(zip(("q", "peak"), q_of(i["m"]))),
    "quantise": lambda i: vector_out(Vector(row_in(i["x"]), pair_in(i["factor"]))),
    "joins the residual": lambda i: block_out(
        add(row_in(i["residual"]), [encode(i["y"], i["unit"])])[0]
    ),
    "joins through a norm": through_norm,
    "hadamard_len": hadamard_len,
    "hadamard": hadamard,
    "score_constant": lambda i: pair_out(score_constant(i["attention_scale"], i["head"])),
    "QueryFactor": lambda i: pair_out(query_factor(pair_in(i["query"]), pair_in(i))),
    "score_scale": lambda i: pair_out(score_scale(pair_in(i), pair_in(i["key"]))),
    "logit": lambda i: logit(i["dot"], pair_in(i["query"]), pair_in(i["query"]["key"])),
    "value_weight": lambda i: value_weight(i["p"], pair_in(i["scale"]), i["top"]),
    "Average": lambda i: average(i["total"], [i["sum"]])[0],
    "attend": answer_attend,
    "phase_increments": lambda i: increments(i["base"], i["dims"], i["factors"], i["scale"]),
}

# Sweeps over all arguments, small enough for this pace.
SWEEPS = {
    "exp2_fraction, all 65536": lambda _: fnv(map(exp2f, range(65536))),
    "sine_cosine, all 2^18 steps of 2^14": lambda _: fnv(
        x for step in range(1 << 18) for x in sine_cosine(step << 14)
    ),
}


def answer(topic, case, i):
    """What this implementation says; None for what it leaves to the other."""
    if topic in ("rows", "matrices") and case in TYPES:
        return answer_row(case, i) if topic == "rows" else answer_matrix(case, i)
    if topic == "heads":
        return answer_head(case, i)
    if topic == "rotations" and case in ("adjacent", "halves"):
        return answer_rotation(case, i)
    if topic == "results" and case.endswith(" times"):
        block = gated(case.split()[0], i["gate"], i["gate_unit"], i["up"], i["up_unit"])
        return block_out(block)
    known = SWEEPS.get(case) or ANSWERS.get(case)
    return known(i) if known else None


def main():
    checked = left = 0
    for path in sorted(HERE.glob("*.jsonl")):
        if path.stem == "models":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            line = json.loads(line)
            found = answer(path.stem, line["case"], line["in"])
            if found is None:
                left += 1
                continue
            checked += 1
            if found != line["out"]:
                sys.exit(f"{path.name}, line {number}: {line['case']}\n"
                         f"golden: {line['out']}\n found: {found}")
    print(f"{checked} cases equal, {left} digests over dice left out")
    golden = {}
    for line in (HERE / "models.jsonl").read_text().splitlines():
        line = json.loads(line)
        golden[line["case"]] = line["out"]
    tokens = [int(x) for x in (FIXTURES / "logits" / "tokens.txt").read_text().split()]
    names = sys.argv[1:] or ["llama-Q4_1", "llama3-ropefreqs-Q8_0", "qwen2-Q4_K_M", "qwen3-Q8_0",
                             "gemma3-Q4_K_M"]
    for name in names:
        found = run(name, tokens)
        if found != golden[name]:
            sys.exit(f"{name}\ngolden: {golden[name]}\n found: {found}")
        print(f"{name}: equal, logits {found['logits']}")


if __name__ == "__main__":
    main()
