//! The memory of one handle: the routing it sent, the routing it received, and the small outputs of a dispatch.

use crate::plan::config::{Config, Layout};
use crate::plan::layout::{expert_rows_of, slabs};
use crate::plan::request::Address;
use std::ops::Range;

/// T tokens, K top-k, N rows a window holds, M rows after expansion, L local experts, R ranks.
pub struct Routing {
    /// [T][K] global ids, -1 for none.
    pub ids: Vec<i32>,
    /// [T][K], 0 where the id is -1.
    pub weights: Vec<f32>,
    /// [T][K] weights of an exact combine between its send and its receive.
    pub combine_weights: Vec<f32>,
    /// [T][K] position of the token's row in the destination's window, -1 for none.
    pub positions: Vec<i32>,
    /// [N][K] local ids, [N][K] weights, [N] sources of received rows; by rank these are the outputs too.
    pub recv_ids: Vec<i32>,
    pub recv_weights: Vec<f32>,
    pub recv_source: Vec<i64>,
    /// [N][K] where a received row was expanded to, -1 for nowhere; by expert.
    pub expert_rows: Vec<i32>,
    /// [R] rows each source has sent here.
    pub sent_here: Vec<i32>,
    /// [M] outputs by expert; slotted by rank [N][K], [N][K], [N]. Packed by rank the received arrays serve.
    pub out_ids: Vec<i32>,
    pub out_weights: Vec<f32>,
    pub out_source: Vec<i64>,
    pub written: Written,
    pub rank_counts: Vec<i32>,
    pub expert_counts: Vec<i32>,
    pub expert_offsets: Vec<i64>,
    pub true_rows: Vec<i64>,
    pub source_ranges: Vec<i32>,
}

/// How far the last receive wrote the outputs by expert that lie here: what is behind is blank already.
pub struct Written {
    /// Rows that its slabs had room for; `None` when it did not write all three, or nobody has yet.
    capacity: Option<usize>,
    /// [slabs] rows from the front of each.
    rows: Vec<usize>,
}

impl Written {
    fn new(slabs: usize) -> Written {
        Written { capacity: None, rows: vec![0; slabs] }
    }

    /// Rows at the front of each slab, behind which all is blank; `None` if that is not known. Slabs of a few cache lines
    /// are sooner filled all at once than looked at one by one.
    pub fn slabs(&self, capacity: usize) -> Option<&[usize]> {
        const FEW: usize = 16;
        (self.capacity == Some(capacity) && capacity > FEW).then_some(&self.rows[..])
    }

    pub fn note(&mut self, capacity: usize, rows: impl Iterator<Item = usize>) {
        self.capacity = Some(capacity);
        self.rows.iter_mut().zip(rows).for_each(|(old, new)| *old = new);
    }

    pub fn forget(&mut self) {
        self.capacity = None;
    }
}

/// How many elements each array has; the arrays and the size function are made from the same numbers.
struct Lengths {
    tokens_k: usize,
    rows: usize,
    rows_k: usize,
    out: usize,
    out_k: usize,
    expert_rows: usize,
    ranks: usize,
    local: usize,
    slabs: usize,
    ranges: usize,
}

impl Lengths {
    fn of(config: &Config, rank: usize) -> Lengths {
        let (k, by_expert) = (config.topk, usize::from(config.layout.by_expert()));
        let (rows, local) = (config.max_recv_rows as usize, config.experts.of_rank(rank).len());
        let out = match config.layout {
            Layout::PackedByRank => 0,
            Layout::SlottedByRank => rows,
            _ => expert_rows_of(config, rank) as usize,
        };
        Lengths {
            tokens_k: config.max_tokens as usize * k,
            rows,
            rows_k: rows * k,
            out,
            out_k: if config.layout == Layout::SlottedByRank { out * k } else { out },
            expert_rows: rows * k * by_expert,
            ranks: config.num_ranks,
            local,
            slabs: slabs(config, rank).0 as usize * by_expert,
            ranges: local * config.num_ranks * 2 * by_expert,
        }
    }
}

impl Routing {
    pub fn new(config: &Config, rank: usize) -> Routing {
        let n = Lengths::of(config, rank);
        Routing {
            ids: vec![0; n.tokens_k],
            weights: vec![0.0; n.tokens_k],
            combine_weights: vec![0.0; n.tokens_k],
            positions: vec![0; n.tokens_k],
            recv_ids: vec![0; n.rows_k],
            recv_weights: vec![0.0; n.rows_k],
            recv_source: vec![0; n.rows],
            expert_rows: vec![0; n.expert_rows],
            sent_here: vec![0; n.ranks],
            out_ids: vec![0; n.out_k],
            out_weights: vec![0.0; n.out_k],
            out_source: vec![0; n.out],
            written: Written::new(n.slabs),
            rank_counts: vec![0; n.ranks],
            expert_counts: vec![0; n.local],
            expert_offsets: vec![0; n.local + 1],
            true_rows: vec![0; 2],
            source_ranges: vec![0; n.ranges],
        }
    }

    /// The bytes that a routing takes, its arrays and itself.
    pub fn bytes(config: &Config, rank: usize) -> u64 {
        let n = Lengths::of(config, rank);
        let fours =
            4 * n.tokens_k + 2 * n.rows_k + n.expert_rows + 2 * n.ranks + 2 * n.out_k + n.local + n.ranges;
        let eights = n.rows + n.out + n.slabs + n.local + 1 + 2;
        4 * fours as u64 + 8 * eights as u64 + size_of::<Routing>() as u64
    }

    /// How many of [`Routing::own_ranges`] are not empty.
    pub fn num_ranges(config: &Config, rank: usize) -> usize {
        let n = Lengths::of(config, rank);
        let lengths =
            [n.rows_k, n.rows_k, n.rows, n.out_k, n.out_k, n.out, n.ranks, n.local, n.local + 1, 2, n.ranges];
        lengths.into_iter().filter(|&length| length > 0).count()
    }

    /// The outputs that a caller may be handed, as address ranges.
    pub fn own_ranges(&self) -> [Range<Address>; 11] {
        fn range<T>(array: &[T]) -> Range<Address> {
            let range = array.as_ptr_range();
            range.start as usize..range.end as usize
        }
        [
            range(&self.recv_ids),
            range(&self.recv_weights),
            range(&self.recv_source),
            range(&self.out_ids),
            range(&self.out_weights),
            range(&self.out_source),
            range(&self.rank_counts),
            range(&self.expert_counts),
            range(&self.expert_offsets),
            range(&self.true_rows),
            range(&self.source_ranges),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::config::RawConfig;

    #[test]
    fn what_is_not_known_to_be_blank_is_filled_whole() {
        let mut written = Written::new(2);
        assert_eq!(written.slabs(80), None, "nobody has written yet");
        written.note(80, [3, 0].into_iter());
        assert_eq!(written.slabs(80), Some(&[3, 0][..]));
        assert_eq!(written.slabs(40), None, "slabs of another size lie elsewhere");
        written.forget();
        assert_eq!(written.slabs(80), None);
        written.note(1, [1, 1].into_iter());
        assert_eq!(written.slabs(1), None);
    }

    #[test]
    fn the_size_is_what_is_allocated() {
        for layout in 0..4 {
            let raw = RawConfig {
                layout,
                max_tokens: 7,
                max_row_bytes: 32,
                num_experts: 5,
                num_topk: 3,
                ..RawConfig::default()
            };
            let config = Config::parse(raw, None, 3).unwrap();
            for rank in 0..3 {
                let r = Routing::new(&config, rank);
                let fours = [&r.ids, &r.positions, &r.recv_ids, &r.expert_rows, &r.sent_here, &r.out_ids]
                    .into_iter()
                    .chain([&r.rank_counts, &r.expert_counts, &r.source_ranges])
                    .map(Vec::capacity)
                    .chain(
                        [&r.weights, &r.combine_weights, &r.recv_weights, &r.out_weights].map(Vec::capacity),
                    );
                let eights =
                    [&r.recv_source, &r.out_source, &r.expert_offsets, &r.true_rows].map(Vec::capacity);
                let eights = eights.iter().sum::<usize>() + r.written.rows.capacity();
                let total = fours.sum::<usize>() * 4 + eights * 8;
                assert_eq!(Routing::bytes(&config, rank), (total + size_of::<Routing>()) as u64);
                let ranges = r.own_ranges().into_iter().filter(|range| !range.is_empty()).count();
                assert_eq!(Routing::num_ranges(&config, rank), ranges);
            }
        }
    }
}
