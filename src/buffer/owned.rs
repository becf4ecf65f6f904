//! Which addresses are the library's own.

use crate::plan::request::Address;
use std::ops::Range;

/// Disjoint ranges, ascending. It grows by exactly what is added, so that the size function can tell.
pub(super) struct Owned(Vec<Range<Address>>);

/// What one range takes.
pub(super) const RANGE_BYTES: usize = size_of::<Range<Address>>();

impl Owned {
    pub fn new(ranges: impl IntoIterator<Item = Range<Address>>) -> Owned {
        let mut owned = Owned(Vec::new());
        owned.add(ranges);
        owned
    }

    pub fn contains(&self, address: Address) -> bool {
        let above = self.0.partition_point(|range| range.start <= address);
        above > 0 && address < self.0[above - 1].end
    }

    /// Adds those that are not empty.
    pub fn add(&mut self, ranges: impl IntoIterator<Item = Range<Address>>) {
        let ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        self.0.reserve_exact(ranges.len());
        self.0.extend(ranges);
        self.0.sort_unstable_by_key(|range| range.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_do_not_belong_to_a_range() {
        let mut owned = Owned::new([30..40, 10..20, 5..5]);
        owned.add([20..25, 7..7]);
        let inside = |owned: &Owned| (0..50).filter(|&address| owned.contains(address)).count();
        assert_eq!(inside(&owned), 25);
        assert!(owned.contains(10) && owned.contains(24) && !owned.contains(25) && !owned.contains(40));
        assert!(!Owned::new([]).contains(0));
    }
}
