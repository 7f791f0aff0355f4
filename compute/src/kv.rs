//! The key-value cache: 8-bit heads, one scale for each position and head, in pages.
//!
//! A *page* holds all layers' keys and values of 32 consecutive positions of a sequence. Full pages
//! can be shared by sequences that begin alike; whoever writes has a page for itself. In a page each
//! layer and head has its own part: keys lie eight positions side by side, four numbers at a time,
//! so that one register holds the same four numbers of eight positions; values lie two positions
//! side by side.
//!
//! **Invariant:** what is stored is what `numeric::attention::quantise_head` returned; nobody reads
//! a key or value that did not pass through the cache, not even the step that made it. Where a
//! position lies changes nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::numeric::attention::HeadScale;

/// Positions of keys that lie side by side.
pub const KEYS_ABREAST: usize = 8;
/// Positions in a page: few, so that little is lost at a sequence's end and prompts are shared
/// finely; many enough that finding the next page costs nothing.
pub const PAGE: usize = 32;

const _: () = assert!(PAGE.is_multiple_of(KEYS_ABREAST));

/// What a page has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Layers with attention.
    pub layers: usize,
    /// Key-value heads in a layer.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head: usize,
}

impl Shape {
    /// Numbers of a key as they lie in memory.
    fn padded(self) -> usize {
        self.head.next_multiple_of(4)
    }

    /// Bytes of one head's part of a page: keys, values, then the scales of both.
    fn head_bytes(self) -> usize {
        PAGE * (self.padded() + self.head + 6)
    }

    /// Bytes of a page.
    pub fn page_bytes(self) -> usize {
        (self.layers * self.kv_heads * self.head_bytes()).next_multiple_of(size_of::<Line>())
    }

    /// Bytes that one position takes in all layers.
    pub fn bytes_per_position(self) -> usize {
        self.layers * self.kv_heads * (self.padded() + self.head + 6)
    }
}

/// Memory is taken by cache lines, so that every part is aligned for its numbers.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its address is used")] [u8; 64]);

/// Where pages come from, and how many there may be.
#[derive(Debug)]
pub struct Pages {
    shape: Shape,
    max: usize,
    taken: AtomicUsize,
    /// Memory of pages that are gone, for those that come: an allocator would have to look for room
    /// for pieces of this size again and again, and scatter what it has.
    spare: Mutex<Vec<Vec<Line>>>,
}

impl Pages {
    /// At most `max` pages of `shape` at a time.
    pub fn new(shape: Shape, max: usize) -> Arc<Self> {
        Arc::new(Self { shape, max, taken: AtomicUsize::new(0), spare: Mutex::default() })
    }

    /// What one of them has room for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Pages that exist now.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Pages that may exist.
    pub fn max(&self) -> usize {
        self.max
    }

    /// A page, if another may exist. What it holds is not defined until it is written.
    fn take(self: &Arc<Self>) -> Option<Page> {
        let more = |taken| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let spare = self.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        let fresh = || vec![Line([0; 64]); self.shape.page_bytes() / size_of::<Line>()];
        let lines = spare.unwrap_or_else(fresh);
        Some(Page { lines, home: self.clone() })
    }
}

/// Keys and values of [`PAGE`] positions in all layers. Dropping it makes room for another.
#[derive(Debug)]
pub struct Page {
    lines: Vec<Line>,
    home: Arc<Pages>,
}

impl Page {
    /// Key-value heads in a layer.
    pub fn heads(&self) -> usize {
        self.home.shape.kv_heads
    }

    /// The part of head `h` of layer `layer`: keys, values, then the scales of both, as
    /// [`HeadPage`] divides them.
    ///
    /// # Panics
    /// Where there is no such head.
    pub fn part(&self, layer: usize, h: usize) -> &[u8] {
        let shape = self.home.shape;
        assert!(layer < shape.layers && h < shape.kv_heads, "no head {h} of {layer}");
        let (size, at) = (shape.head_bytes(), layer * shape.kv_heads + h);
        // SAFETY: a page has a part for each head of each layer, within its lines, which are bytes.
        // Whoever writes a page has it for itself, by `Cache::places`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<u8>().add(at * size), size) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut spare = self.home.spare.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        spare.push(std::mem::take(&mut self.lines));
        self.home.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// There may be no more pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPage;

/// The pages of one sequence.
#[derive(Debug)]
pub struct Cache {
    home: Arc<Pages>,
    pages: Vec<Arc<Page>>,
}

impl Cache {
    /// Of a sequence that begins with what `pages` hold, if there are any.
    pub fn beginning(home: Arc<Pages>, pages: Vec<Arc<Page>>) -> Self {
        Self { home, pages }
    }

    /// Where its pages come from.
    pub fn home(&self) -> &Pages {
        &self.home
    }

    /// Its pages, in order.
    pub fn pages(&self) -> &[Arc<Page>] {
        &self.pages
    }

    /// Puts `pages`, which hold the same, in place of the first ones.
    pub fn exchange(&mut self, pages: Vec<Arc<Page>>) {
        for (own, other) in self.pages.iter_mut().zip(pages) {
            *own = other;
        }
    }

    /// Gives up all pages that hold nothing before `position`.
    pub fn truncate(&mut self, position: usize) {
        self.pages.truncate(position.div_ceil(PAGE));
    }

    /// How many pages must be taken before `positions` can be written.
    pub fn pages_wanted(&self, positions: &Range<usize>) -> usize {
        let end = positions.end.div_ceil(PAGE);
        let first = (positions.start / PAGE).min(self.pages.len());
        let shared = |page: &&Arc<Page>| Arc::strong_count(page) > 1;
        let copies = self.pages[first..].iter().take(end - first).filter(shared).count();
        copies + end.saturating_sub(self.pages.len())
    }

    /// Makes room for `positions`, which begin within or just after what there is, in pages of its
    /// own: those that it shares are copied first.
    pub fn reserve(&mut self, positions: &Range<usize>) -> Result<(), NoPage> {
        let first = positions.start / PAGE;
        for i in first..positions.end.div_ceil(PAGE) {
            match self.pages.get_mut(i) {
                None => self.pages.push(Arc::new(self.home.take().ok_or(NoPage)?)),
                Some(page) if Arc::strong_count(page) > 1 => {
                    let mut own = self.home.take().ok_or(NoPage)?;
                    own.lines.copy_from_slice(&page.lines);
                    *page = Arc::new(own);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Where the pages lie. Those of `written` may be written through it, as long as this borrow
    /// lives.
    ///
    /// # Panics
    /// Where there is no page for one of `written`, or one that others hold, too.
    pub fn places(&mut self, written: &Range<usize>) -> Vec<Place> {
        let first = written.start / PAGE;
        let shape = self.home.shape;
        assert!(written.end <= self.pages.len() * PAGE, "room is made before");
        let place = |(i, page): (usize, &mut Arc<Page>)| {
            let start: *mut u8 = match Arc::get_mut(page) {
                Some(own) => own.lines.as_mut_ptr().cast(),
                None => {
                    assert!(i < first, "what is shared is copied before it is written");
                    page.lines.as_ptr().cast_mut().cast()
                }
            };
            Place { start, shape }
        };
        self.pages.iter_mut().enumerate().map(place).collect()
    }
}

/// Where a page lies. Several threads use it in turns.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    start: *mut u8,
    shape: Shape,
}

// SAFETY: `put_key`, `put_value` and `HeadCache::new` ask their callers to keep writers and readers
// apart.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// Where the part of head `h` of layer `layer` begins.
    fn part(self, layer: usize, h: usize) -> *mut u8 {
        assert!(layer < self.shape.layers && h < self.shape.kv_heads, "no head {h} of {layer}");
        let part = layer * self.shape.kv_heads + h;
        // SAFETY: a page has a part for each head of each layer.
        unsafe { self.start.add(part * self.shape.head_bytes()) }
    }

    /// Stores a key of head `h` of layer `layer` at the page's position `at`.
    ///
    /// # Safety
    /// The page lives and is one sequence's own; no other thread writes or reads this position of
    /// this head now.
    pub unsafe fn put_key(self, (layer, h): (usize, usize), at: usize, q: &[i8], scale: HeadScale) {
        let Shape { head, .. } = self.shape;
        assert!(at < PAGE && q.len() == head);
        let (part, padded) = (self.part(layer, h), self.shape.padded());
        let lane = at % KEYS_ABREAST;
        // SAFETY: all places lie in the head's part, as `HeadPage::of` divides it.
        unsafe {
            let keys = part.cast::<i8>().add((at - lane) * padded + 4 * lane);
            for (i, &q) in q.iter().enumerate() {
                *keys.add(i / 4 * 4 * KEYS_ABREAST + i % 4) = q;
            }
            let scales = part.add(PAGE * (padded + head));
            *scales.cast::<i16>().add(at) = scale.m;
            *scales.add(4 * PAGE + at).cast::<i8>() = scale.e;
        }
    }

    /// Stores a value; otherwise as [`Place::put_key`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn put_value(
        self,
        (layer, h): (usize, usize),
        at: usize,
        q: &[i8],
        scale: HeadScale,
    ) {
        let Shape { head, .. } = self.shape;
        assert!(at < PAGE && q.len() == head);
        let (part, padded) = (self.part(layer, h), self.shape.padded());
        // SAFETY: as in `put_key`.
        unsafe {
            let values = part.cast::<i8>().add(PAGE * padded + (at - at % 2) * head + at % 2);
            for (i, &q) in q.iter().enumerate() {
                *values.add(2 * i) = q;
            }
            let scales = part.add(PAGE * (padded + head));
            *scales.cast::<i16>().add(PAGE + at) = scale.m;
            *scales.add(5 * PAGE + at).cast::<i8>() = scale.e;
        }
    }
}

/// One head of one layer in all pages of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct HeadCache<'a> {
    pages: &'a [Place],
    layer: usize,
    h: usize,
    /// Numbers in a head.
    pub head: usize,
}

/// One head of one layer in one page.
#[derive(Debug, Clone, Copy)]
pub struct HeadPage<'a> {
    /// `[PAGE / 8][head / 4][8][4]`, the head padded to a multiple of 4.
    pub keys: &'a [i8],
    /// `[PAGE / 2][head][2]`.
    pub values: &'a [i8],
    /// Mantissas of key scales.
    pub key_m: &'a [i16; PAGE],
    /// Mantissas of value scales.
    pub value_m: &'a [i16; PAGE],
    /// Exponents of key scales.
    pub key_e: &'a [i8; PAGE],
    /// Exponents of value scales.
    pub value_e: &'a [i8; PAGE],
}

/// A stretch of positions that lie in one page.
#[derive(Debug, Clone)]
pub struct Stretch<'a> {
    /// Its number.
    pub number: usize,
    /// The page.
    pub page: HeadPage<'a>,
    /// Where they are in the page.
    pub inside: Range<usize>,
    /// How many positions of the whole range came before.
    pub before: usize,
}

impl<'a> HeadCache<'a> {
    /// Of head `h` of layer `layer` in a sequence whose pages are `pages`, one or more.
    ///
    /// # Safety
    /// The pages live, and nobody writes this head of this layer, as long as this does.
    pub unsafe fn new(pages: &'a [Place], layer: usize, h: usize) -> Self {
        Self { pages, layer, h, head: pages[0].shape.head }
    }

    /// Positions that there is room for.
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// The part of page `i`.
    #[inline(always)]
    pub fn page(&self, i: usize) -> HeadPage<'a> {
        let place = self.pages[i];
        let part: *const u8 = place.part(self.layer, self.h);
        let (padded, head) = (place.shape.padded(), place.shape.head);
        // SAFETY: the page lives and is not written, by the promise to `new`; the pieces are those
        // that `head_bytes` counts, and multiples of 2 where their numbers have 16 bits.
        unsafe {
            let scales = part.add(PAGE * (padded + head));
            HeadPage {
                keys: std::slice::from_raw_parts(part.cast(), PAGE * padded),
                values: std::slice::from_raw_parts(part.add(PAGE * padded).cast(), PAGE * head),
                key_m: &*scales.cast(),
                value_m: &*scales.add(2 * PAGE).cast(),
                key_e: &*scales.add(4 * PAGE).cast(),
                value_e: &*scales.add(5 * PAGE).cast(),
            }
        }
    }

    /// `positions`, page by page.
    #[inline(always)]
    pub fn stretches(
        &self,
        positions: Range<usize>,
    ) -> impl Iterator<Item = Stretch<'a>> + use<'a> {
        let cache = *self;
        (positions.start / PAGE..positions.end.div_ceil(PAGE)).map(move |i| {
            let first = positions.start.max(i * PAGE);
            let inside = first - i * PAGE..(positions.end - i * PAGE).min(PAGE);
            Stretch { number: i, page: cache.page(i), inside, before: first - positions.start }
        })
    }

    /// Copies the key at `position` and returns its scale.
    pub fn key(&self, position: usize, q: &mut [i8]) -> HeadScale {
        let (page, at) = (self.page(position / PAGE), position % PAGE);
        let padded = page.keys.len() / PAGE;
        let lane = at % KEYS_ABREAST;
        let start = (at - lane) * padded + lane * 4;
        for (i, q) in q.iter_mut().enumerate() {
            *q = page.keys[start + i / 4 * 4 * KEYS_ABREAST + i % 4];
        }
        HeadScale { m: page.key_m[at], e: page.key_e[at] }
    }

    /// Copies the value at `position` and returns its scale.
    pub fn value(&self, position: usize, q: &mut [i8]) -> HeadScale {
        let (page, at) = (self.page(position / PAGE), position % PAGE);
        let start = (at - at % 2) * self.head + at % 2;
        for (i, q) in q.iter_mut().enumerate() {
            *q = page.values[start + 2 * i];
        }
        HeadScale { m: page.value_m[at], e: page.value_e[at] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { layers: 2, kv_heads: 3, head: 18 };

    fn put(cache: &mut Cache, positions: Range<usize>, salt: usize) {
        cache.reserve(&positions).unwrap();
        let places = cache.places(&positions);
        for position in positions {
            for (layer, h) in [(0, 0), (1, 2)] {
                let n = position * 7 + layer * 3 + h + salt;
                let q: Vec<i8> = (0..18).map(|i| ((n + i) % 251) as u8 as i8).collect();
                let scale = HeadScale { m: n as i16, e: (n % 100) as i8 };
                let value = HeadScale { m: !n as i16, e: -((n % 90) as i8) };
                // SAFETY: one thread.
                unsafe {
                    places[position / PAGE].put_key((layer, h), position % PAGE, &q, scale);
                    places[position / PAGE].put_value((layer, h), position % PAGE, &q, value);
                }
            }
        }
    }

    #[track_caller]
    fn check(cache: &mut Cache, positions: Range<usize>, salt: usize) {
        let end = cache.pages.len() * PAGE;
        let places = cache.places(&(end..end));
        for position in positions {
            for (layer, h) in [(0, 0), (1, 2)] {
                let n = position * 7 + layer * 3 + h + salt;
                let wanted: Vec<i8> = (0..18).map(|i| ((n + i) % 251) as u8 as i8).collect();
                // SAFETY: one thread.
                let head = unsafe { HeadCache::new(&places, layer, h) };
                let mut q = [0; 18];
                let scale = HeadScale { m: n as i16, e: (n % 100) as i8 };
                assert_eq!((head.key(position, &mut q), q.to_vec()), (scale, wanted.clone()));
                let scale = HeadScale { m: !n as i16, e: -((n % 90) as i8) };
                assert_eq!((head.value(position, &mut q), q.to_vec()), (scale, wanted));
            }
        }
    }

    #[test]
    fn what_is_put_is_found() {
        let mut cache = Cache::beginning(Pages::new(SHAPE, 9), Vec::new());
        put(&mut cache, 0..5, 0);
        put(&mut cache, 5..100, 0);
        check(&mut cache, 0..100, 0);
    }

    #[test]
    fn a_shared_page_is_copied_before_it_is_written() {
        let home = Pages::new(SHAPE, 9);
        let mut first = Cache::beginning(home.clone(), Vec::new());
        put(&mut first, 0..70, 0);
        let mut second = Cache::beginning(home.clone(), first.pages()[..2].to_vec());
        assert_eq!((home.taken(), second.pages_wanted(&(40..70))), (3, 2));
        put(&mut second, 40..70, 5);
        assert_eq!(home.taken(), 5);
        check(&mut first, 0..70, 0);
        check(&mut second, 0..40, 0);
        check(&mut second, 40..70, 5);
    }

    #[test]
    fn pages_are_counted_and_come_back() {
        let home = Pages::new(SHAPE, 2);
        let mut cache = Cache::beginning(home.clone(), Vec::new());
        assert_eq!(cache.pages_wanted(&(0..65)), 3);
        assert_eq!(cache.reserve(&(0..65)), Err(NoPage));
        assert_eq!((home.taken(), home.max()), (2, 2));
        cache.truncate(32);
        assert_eq!((home.taken(), cache.pages_wanted(&(32..33))), (1, 1));
        drop(cache);
        assert_eq!(home.taken(), 0);
    }

    #[test]
    fn stretches_cover_a_range_once() {
        let mut cache = Cache::beginning(Pages::new(SHAPE, 9), Vec::new());
        cache.reserve(&(0..200)).unwrap();
        let places = cache.places(&(0..0));
        // SAFETY: one thread.
        let head = unsafe { HeadCache::new(&places, 0, 0) };
        for range in [0..1, 0..32, 5..6, 31..33, 8..160, 64..65] {
            let mut next = range.start;
            for (i, part) in head.stretches(range.clone()).enumerate() {
                assert_eq!(part.before, next - range.start);
                assert_eq!((range.start / PAGE + i) * PAGE + part.inside.start, next);
                next += part.inside.len();
            }
            assert_eq!(next, range.end);
        }
    }
}
