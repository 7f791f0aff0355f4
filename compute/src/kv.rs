//! The key-value cache: 8-bit heads, one scale for each position and head.
//!
//! Keys lie eight positions side by side, four numbers at a time, so that one register holds the
//! same four numbers of eight positions. Values lie two positions side by side.
//!
//! **Invariant:** what is stored is what `numeric::attention::quantise_head` returned; nobody reads
//! a key or value that did not pass through the cache, not even the step that made it.

use crate::numeric::attention::HeadScale;

/// Positions of keys that lie side by side.
pub const KEYS_ABREAST: usize = 8;

/// Keys and values of one layer for one sequence.
#[derive(Debug)]
pub struct LayerCache {
    /// Positions that fit, a multiple of 8.
    capacity: usize,
    head: usize,
    /// `[kv_heads][capacity / 8][head / 4][8][4]`, the head padded to a multiple of 4.
    keys: Vec<i8>,
    /// `[kv_heads][capacity / 2][head][2]`.
    values: Vec<i8>,
    key_m: Vec<i16>,
    key_e: Vec<i8>,
    value_m: Vec<i16>,
    value_e: Vec<i8>,
}

/// One head's part of a [`LayerCache`].
#[derive(Debug, Clone, Copy)]
pub struct HeadCache<'a> {
    /// Numbers in a head.
    pub head: usize,
    /// `[capacity / 8][head / 4][8][4]`.
    pub keys: &'a [i8],
    /// `[capacity / 2][head][2]`.
    pub values: &'a [i8],
    /// Mantissas of key scales by position.
    pub key_m: &'a [i16],
    /// Exponents of key scales by position.
    pub key_e: &'a [i8],
    /// Mantissas of value scales by position.
    pub value_m: &'a [i16],
    /// Exponents of value scales by position.
    pub value_e: &'a [i8],
}

impl LayerCache {
    /// Room for `positions` positions of `kv_heads` heads of `head` numbers.
    pub fn new(positions: usize, kv_heads: usize, head: usize) -> Self {
        let capacity = positions.next_multiple_of(KEYS_ABREAST);
        let (rows, padded) = (kv_heads * capacity, head.next_multiple_of(4));
        Self {
            capacity,
            head,
            // Zeroed memory costs nothing until it is written.
            keys: vec![0; rows * padded],
            values: vec![0; rows * head],
            key_m: vec![0; rows],
            key_e: vec![0; rows],
            value_m: vec![0; rows],
            value_e: vec![0; rows],
        }
    }

    /// Bytes that one position takes in a layer.
    pub fn bytes_per_position(kv_heads: usize, head: usize) -> usize {
        kv_heads * (head.next_multiple_of(4) + head + 6)
    }

    /// Keys and values of head `h`.
    pub fn head(&self, h: usize) -> HeadCache<'_> {
        let rows = h * self.capacity..(h + 1) * self.capacity;
        let (padded, head) = (self.head.next_multiple_of(4), self.head);
        HeadCache {
            head,
            keys: &self.keys[rows.start * padded..rows.end * padded],
            values: &self.values[rows.start * head..rows.end * head],
            key_m: &self.key_m[rows.clone()],
            key_e: &self.key_e[rows.clone()],
            value_m: &self.value_m[rows.clone()],
            value_e: &self.value_e[rows],
        }
    }

    /// A writer that several threads may use at once.
    pub fn writer(&mut self) -> Writer {
        Writer {
            capacity: self.capacity,
            head: self.head,
            keys: self.keys.as_mut_ptr(),
            values: self.values.as_mut_ptr(),
            key: (self.key_m.as_mut_ptr(), self.key_e.as_mut_ptr()),
            value: (self.value_m.as_mut_ptr(), self.value_e.as_mut_ptr()),
            rows: self.key_m.len(),
        }
    }
}

/// Writes heads into a [`LayerCache`] from several threads.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    capacity: usize,
    head: usize,
    keys: *mut i8,
    values: *mut i8,
    key: (*mut i16, *mut i8),
    value: (*mut i16, *mut i8),
    rows: usize,
}

// SAFETY: `put_key` and `put_value` ask their callers for distinct (head, position) pairs, and
// different pairs write different bytes.
unsafe impl Send for Writer {}
// SAFETY: as above.
unsafe impl Sync for Writer {}

impl Writer {
    fn row(&self, h: usize, position: usize) -> usize {
        assert!(position < self.capacity, "position {position} is past the cache");
        let row = h * self.capacity + position;
        assert!(row < self.rows, "there is no head {h}");
        row
    }

    /// Stores a key.
    ///
    /// # Safety
    /// The cache lives; no other thread writes or reads this head's position now.
    pub unsafe fn put_key(&self, h: usize, position: usize, q: &[i8], scale: HeadScale) {
        assert_eq!(q.len(), self.head);
        let row = self.row(h, position);
        let padded = self.head.next_multiple_of(4);
        let start = (row - position % KEYS_ABREAST) * padded + position % KEYS_ABREAST * 4;
        // SAFETY: `row` is in range, so all places derived from it are.
        unsafe {
            for (i, &q) in q.iter().enumerate() {
                *self.keys.add(start + i / 4 * 4 * KEYS_ABREAST + i % 4) = q;
            }
            *self.key.0.add(row) = scale.m;
            *self.key.1.add(row) = scale.e;
        }
    }

    /// Stores a value.
    ///
    /// # Safety
    /// As [`Writer::put_key`].
    pub unsafe fn put_value(&self, h: usize, position: usize, q: &[i8], scale: HeadScale) {
        assert_eq!(q.len(), self.head);
        let row = self.row(h, position);
        let start = (row - position % 2) * self.head + position % 2;
        // SAFETY: `row` is in range, so all places derived from it are.
        unsafe {
            for (i, &q) in q.iter().enumerate() {
                *self.values.add(start + 2 * i) = q;
            }
            *self.value.0.add(row) = scale.m;
            *self.value.1.add(row) = scale.e;
        }
    }
}

impl HeadCache<'_> {
    /// Copies the key at `position` and returns its scale.
    pub fn key(&self, position: usize, q: &mut [i8]) -> HeadScale {
        let padded = self.head.next_multiple_of(4);
        let lane = position % KEYS_ABREAST;
        let start = (position - lane) * padded + lane * 4;
        for (i, q) in q.iter_mut().enumerate() {
            *q = self.keys[start + i / 4 * 4 * KEYS_ABREAST + i % 4];
        }
        HeadScale { m: self.key_m[position], e: self.key_e[position] }
    }

    /// Copies the value at `position` and returns its scale.
    pub fn value(&self, position: usize, q: &mut [i8]) -> HeadScale {
        let start = (position - position % 2) * self.head + position % 2;
        for (i, q) in q.iter_mut().enumerate() {
            *q = self.values[start + 2 * i];
        }
        HeadScale { m: self.value_m[position], e: self.value_e[position] }
    }
}
