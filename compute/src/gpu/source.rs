//! Puts shaders together: one for each combination of weight types, with a model's constants in it.

use std::fmt::Write;

use crate::gguf::TensorType;
use crate::matrix::{Family, Layout};
use crate::numeric::weights::shape;

const WIDE: &str = include_str!("wgsl/wide.wgsl");
const BLOCK: &str = include_str!("wgsl/block.wgsl");
const SCALAR: &str = include_str!("wgsl/scalar.wgsl");
const PRODUCT: &str = include_str!("wgsl/product.wgsl");
const PRODUCT_EACH: &str = include_str!("wgsl/product_each.wgsl");

/// What becomes of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// They are encoded as blocks, with biases.
    Encode,
    /// They are added to the residual.
    Join,
    /// The first matrix' bend those of the second.
    Gate {
        /// By GELU and not SiLU.
        gelu: bool,
    },
}

impl End {
    /// The entry point.
    pub fn entry(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Join => "join",
            Self::Gate { .. } => "gated",
        }
    }
}

/// A shader that multiplies `cols` vectors at a time with matrices of these types.
pub fn product(kinds: &[TensorType], cols: u32, end: End) -> String {
    let mut all = [WIDE, BLOCK].concat();
    writeln!(all, "const COLS: u32 = {cols}u;").expect("a string takes everything");
    all += PRODUCT;
    for (n, kind) in kinds.iter().enumerate() {
        all += &matrix(n, *kind);
    }
    match end {
        End::Encode => {
            all += &include_str!("wgsl/product_encode.wgsl").replace("DISPATCH", &dispatch(kinds));
        }
        End::Join => all += include_str!("wgsl/product_add.wgsl"),
        End::Gate { gelu } => {
            writeln!(all, "const GELU: bool = {gelu};").expect("a string takes everything");
            all += include_str!("wgsl/product_gate.wgsl");
        }
    }
    all
}

/// Finds out whose the group is: matrices lie side by side.
fn dispatch(kinds: &[TensorType]) -> String {
    let mut all = String::new();
    for n in 0..kinds.len() {
        let last = n + 1 == kinds.len();
        let test =
            if last { String::new() } else { format!("if group < info[INFO * {n}u + GROUPS] ") };
        write!(all, "{test}{{ head = INFO * {n}u; product_{n}(group, thread, first, count); }}")
            .expect("a string takes everything");
        if !last {
            write!(all, " else {{ group -= info[INFO * {n}u + GROUPS]; ")
                .expect("a string takes everything");
        }
    }
    all + &"}".repeat(kinds.len() - 1)
}

/// The product with one matrix, which is binding `4 + n`.
fn matrix(n: usize, kind: TensorType) -> String {
    let layout = Layout::of(kind);
    let bounds = shape(kind);
    PRODUCT_EACH
        .replace("CODES_N", &codes(&layout))
        .replace("BODY_N", &body(&layout, bounds.has_min))
        .replace("BINDING_N", &(4 + n).to_string())
        .replace("PER_UNIT_N", &format!("{}u", layout.columns / 32))
        .replace("UNIT_WORDS_N", &format!("{}u", layout.bytes / 4))
        .replace("QMAX_N", &format!("{}u", bounds.q_max))
        .replace("HAS_MIN_N", &bounds.has_min.to_string())
        .replace("BY_HALVES_N", &(bounds.span == 16).to_string())
        .replace("N_INDEX", &format!("{n}u"))
        .replace("_N", &format!("_{n}"))
}

/// `code_N`: word `s` of block `k` of a unit, four codes of a row, not centred; and `scale_N`: scales
/// of the block's first and second half (the same where they share one), then minima.
fn codes(layout: &Layout) -> String {
    use TensorType::*;
    let low = layout.low / 4;
    let high = layout.high / 4;
    let word = |at: &str| format!("w_N[base + {low}u + 8u * ({at}) + lane]");
    let high_word = |at: &str| format!("w_N[base + {high}u + 8u * ({at}) + lane]");
    let code = match layout.kind {
        Q4_0 | Q4_1 | Q5_0 | Q5_1 => {
            let four = format!("(({} >> (4u * (s / 4u))) & 0x0f0f0f0fu)", word("4u * k + s % 4u"));
            match layout.high {
                0 => four,
                _ => format!("{four} | ((({} >> s) & 0x01010101u) << 4u)", high_word("k")),
            }
        }
        IQ4_NL => format!("iq4_N({} >> (4u * (s / 4u)))", word("4u * k + s % 4u")),
        IQ4_XS => format!("iq4_N({} >> (4u * (s / 4u)))", word("4u * k + s % 4u")),
        Q8_0 => word("8u * k + s"),
        Q4_K | Q5_K => {
            let four =
                format!("(({} >> (4u * (k % 2u))) & 0x0f0f0f0fu)", word("8u * (k / 2u) + s"));
            match layout.high {
                0 => four,
                _ => format!("{four} | ((({} >> k) & 0x01010101u) << 4u)", high_word("s")),
            }
        }
        Q6_K => format!(
            "(({} >> (4u * ((k % 4u) / 2u))) & 0x0f0f0f0fu) | ((({} >> (2u * (k % 4u))) & 0x03030303u) << 4u)",
            word("16u * (k / 4u) + 8u * (k % 2u) + s"),
            high_word("8u * (k / 4u) + s")
        ),
        Q3_K | Q2_K => {
            let two = format!("(({} >> (2u * (k % 4u))) & 0x03030303u)", word("8u * (k / 4u) + s"));
            match layout.high {
                0 => two,
                _ => format!("{two} | ((({} >> k) & 0x01010101u) << 2u)", high_word("s")),
            }
        }
        F32 | F16 | BF16 => word("16u * k + s"),
    };
    let table = match layout.kind {
        IQ4_NL | IQ4_XS => IQ4,
        _ => "",
    };
    format!(
        "{table}\nfn code_N(base: u32, lane: u32, k: u32, s: u32) -> u32 {{ return {code}; }}\n{}",
        scale(layout)
    )
}

/// `V` of IQ4: sixteen signed bytes in four words.
const IQ4: &str = "
const IQ4_N = array<u32, 4>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
fn iq4_N(x: u32) -> u32 {
    var all = 0u;
    for (var i = 0u; i < 4u; i++) {
        let n = (x >> (8u * i)) & 15u;
        all |= ((IQ4_N[n / 4u] >> (8u * (n % 4u))) & 255u) << (8u * i);
    }
    return all;
}
";

fn scale(layout: &Layout) -> String {
    let (d, m) = (layout.d / 4, layout.m / 4);
    let has_m = layout.m != 0;
    if layout.columns == 64 {
        // A word holds the fractions of both blocks of a row.
        let half = |at: usize| {
            format!(
                "select(low_half(w_N[base + {at}u + lane]), high_half(w_N[base + {at}u + lane]), k == 1u)"
            )
        };
        let min = if has_m { half(m) } else { "0".into() };
        return format!(
            "fn scale_N(base: u32, lane: u32, k: u32) -> vec4<i32> {{
                let s = {};
                let m = {min};
                return vec4(s, s, m, m);
            }}",
            half(d)
        );
    }
    // Two rows' fractions to a word; two rows' pairs of sub-scales, too.
    let fraction = |at: usize| {
        format!(
            "select(low_half(w_N[base + {at}u + lane / 2u]), high_half(w_N[base + {at}u + lane / 2u]), lane % 2u == 1u)"
        )
    };
    let by_halves = layout.family == Family::Half;
    let pair = if by_halves { "k" } else { "(k / 2u)" };
    let sub = |at: usize| {
        format!("(w_N[base + {}u + 4u * {pair} + lane / 2u] >> (16u * (lane % 2u)))", at / 4)
    };
    // Which byte: a half's own, or the block's.
    let (first, second) = if by_halves { ("0u", "1u") } else { ("k % 2u", "k % 2u") };
    let up = 15 - layout.sub_bits;
    let times = |fraction: &str, small: String| format!("mul_q15({fraction}, ({small}) << {up}u)");
    let (s0, s1, m0, m1);
    let mut lets =
        format!("let d = {};\nlet subs = {};\n", fraction(layout.d / 4), sub(layout.sub));
    if layout.kind == TensorType::Q2_K {
        let nibble = |i: &str, shift: u32| format!("i32((subs >> (8u * {i} + {shift}u)) & 15u)");
        writeln!(lets, "let m = {};", fraction(m)).expect("a string takes everything");
        (s0, s1) = (times("d", nibble("0u", 0)), times("d", nibble("1u", 0)));
        (m0, m1) = (times("m", nibble("0u", 4)), times("m", nibble("1u", 4)));
    } else {
        (s0, s1) = (
            times("d", format!("byte(subs, {first})")),
            times("d", format!("byte(subs, {second})")),
        );
        if layout.sub_min != 0 {
            write!(lets, "let m = {};\nlet sub_mins = {};\n", fraction(m), sub(layout.sub_min))
                .expect("a string takes everything");
            (m0, m1) = (
                times("m", format!("byte(sub_mins, {first})")),
                times("m", format!("byte(sub_mins, {second})")),
            );
        } else {
            (m0, m1) = ("0".into(), "0".into());
        }
    }
    format!(
        "fn scale_N(base: u32, lane: u32, k: u32) -> vec4<i32> {{
            {lets}
            return vec4({s0}, {s1}, {m0}, {m1});
        }}"
    )
}

/// What is done for one block of a row.
fn body(layout: &Layout, has_min: bool) -> String {
    let centre = layout.centre;
    let (words, inner) = match layout.family {
        Family::Wide => (
            16,
            "var dot = 0;
            for (var s = 0u; s < 16u; s++) {
                let q = acts[q_at + s / 2u] >> (16u * (s % 2u));
                dot += low_half(codes[s]) * byte(q, 0u) + high_half(codes[s]) * byte(q, 1u);
            }
            add_wide_dot(c, mul_q15(scales.x, low_half(acts[beside])), dot);"
                .to_owned(),
        ),
        Family::Half => (
            8,
            format!(
                "let a = low_half(acts[beside]);
                let halves = acts[beside + 1u];
                var first_dot = -{centre} * low_half(halves);
                var second_dot = -{centre} * high_half(halves);
                for (var s = 0u; s < 4u; s++) {{
                    first_dot += dot4I8Packed(codes[s], acts[q_at + s]);
                    second_dot += dot4I8Packed(codes[s + 4u], acts[q_at + s + 4u]);
                }}
                add_dot(c, mul_q15(scales.x, a), first_dot);
                add_dot(c, mul_q15(scales.y, a), second_dot);
                {}",
                if has_min {
                    "let t = acts[beside + 3u];
                    add_min(c, scales.z * low_half(t));
                    add_min(c, scales.w * high_half(t));"
                } else {
                    ""
                }
            ),
        ),
        _ => (
            8,
            format!(
                "let a = acts[beside];
                var dot = -{centre} * high_half(a);
                for (var s = 0u; s < 8u; s++) {{
                    dot += dot4I8Packed(codes[s], acts[q_at + s]);
                }}
                add_dot(c, mul_q15(scales.x, low_half(a)), dot);
                {}",
                if has_min { "add_min(c, scales.z * low_half(acts[beside + 2u]));" } else { "" }
            ),
        ),
    };
    format!(
        "let scales = scale_N(base, lane, k);
        var codes: array<u32, {words}>;
        for (var s = 0u; s < {words}u; s++) {{
            codes[s] = code_N(base, lane, k, s);
        }}
        for (var c = 0u; c < COLS; c++) {{
            if c < count {{
                let vector = (first + c) * stride;
                let beside = vector + TOKEN + BESIDE * b;
                let q_at = vector + TOKEN + BESIDE * act_blocks + 8u * b;
                {inner}
            }}
        }}"
    )
}

/// A shader over whole rows, heads or positions, with a model's constants.
pub fn with_constants(source: &str, constants: &[(&str, String)]) -> String {
    let mut all = [WIDE, BLOCK, SCALAR].concat();
    for (name, value) in constants {
        writeln!(all, "const {name} = {value};").expect("a string takes everything");
    }
    all + source
}

/// The shader of norms and quantisation.
pub const ROWS: &str = include_str!("wgsl/rows.wgsl");
/// The shader that makes heads.
pub const HEADS: &str = include_str!("wgsl/heads.wgsl");
/// The shader of attention.
pub const ATTEND: &str = include_str!("wgsl/attend.wgsl");
