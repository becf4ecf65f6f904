//! From expert ids to counts and positions: every position is a prefix sum over (source rank, token).

use super::experts::Experts;
use super::round_up;

/// "No expert", in ids and positions.
pub const NONE: i32 = -1;

/// The first id that was out of range or repeated in its row, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadId {
    pub row: i64,
    pub value: i64,
    pub repeated: bool,
}

/// Copies ids into `out`, row by row of `topk`; what is no expert, and every occurrence after the first in a row,
/// becomes -1.
pub fn canonical_ids(
    given: impl Iterator<Item = i64>,
    topk: usize,
    num_experts: usize,
    out: &mut [i32],
) -> Option<BadId> {
    let mut first_bad = None;
    for (i, value) in given.take(out.len()).enumerate() {
        let row = i / topk * topk;
        let in_range = (0..num_experts as i64).contains(&value);
        let repeated = in_range && out[row..i].contains(&(value as i32));
        out[i] = if in_range && !repeated { value as i32 } else { NONE };
        if first_bad.is_none() && value != NONE.into() && (!in_range || repeated) {
            first_bad = Some(BadId { row: (i / topk) as i64, value, repeated });
        }
    }
    first_bad
}

/// Turns ids of experts whose rank does not take part into -1.
pub fn mask_ids(ids: &mut [i32], experts: &Experts, alive: &[bool]) {
    for id in ids.iter_mut().filter(|id| **id != NONE) {
        if !alive[experts.home(*id as usize).rank as usize] {
            *id = NONE;
        }
    }
}

/// What one rank publishes: how many of its rows go to each rank, and how many to each expert.
pub fn count(ids: &[i32], topk: usize, experts: &Experts, per_rank: &mut [i32], per_expert: &mut [i32]) {
    per_rank.fill(0);
    per_expert.fill(0);
    for row in ids.chunks_exact(topk) {
        for (k, &id) in row.iter().enumerate().filter(|(_, id)| **id != NONE) {
            per_expert[id as usize] += 1;
            let rank = experts.home(id as usize).rank;
            if first_on_rank(row, k, rank, experts) {
                per_rank[rank as usize] += 1;
            }
        }
    }
}

/// Whether no earlier id of the row lives on the same rank.
fn first_on_rank(row: &[i32], k: usize, rank: u32, experts: &Experts) -> bool {
    !row[..k].iter().any(|&id| id != NONE && experts.home(id as usize).rank == rank)
}

/// Gives every (token, k) the position of the token's row on the expert's rank, counting up from `base` of that rank.
/// The K ids of one token on one rank share one row.
pub fn place(ids: &[i32], topk: usize, experts: &Experts, base: &mut [i64], positions: &mut [i32]) {
    for (row, out) in ids.chunks_exact(topk).zip(positions.chunks_exact_mut(topk)) {
        for k in 0..topk {
            if row[k] == NONE {
                out[k] = NONE;
                continue;
            }
            let rank = experts.home(row[k] as usize).rank;
            let same = (0..k).find(|&j| row[j] != NONE && experts.home(row[j] as usize).rank == rank);
            out[k] = match same {
                Some(j) => out[j],
                None => {
                    let next = &mut base[rank as usize];
                    *next += 1;
                    (*next - 1) as i32
                }
            };
        }
    }
}

/// One row of a token on its way to one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    pub rank: u32,
    pub position: i32,
    /// The largest k whose expert lives on that rank: the slot its partial sum comes back to.
    pub last_k: u32,
}

/// The distinct destinations of one token, in ascending order of their first k.
pub fn destinations(ids: &[i32], positions: &[i32], experts: &Experts, out: &mut Vec<Destination>) {
    out.clear();
    for (k, &id) in ids.iter().enumerate().filter(|(_, id)| **id != NONE) {
        let rank = experts.home(id as usize).rank;
        match out.iter_mut().find(|d| d.rank == rank) {
            Some(known) => known.last_k = k as u32,
            None => out.push(Destination { rank, position: positions[k], last_k: k as u32 }),
        }
    }
}

/// Start of each expert's rows at multiples of `alignment`, and the end of the last.
pub fn aligned_offsets(counts: &[i32], alignment: u64, out: &mut [i64]) {
    let mut at = 0;
    for (count, start) in counts.iter().zip(out.iter_mut()) {
        *start = at;
        at += round_up(*count as u64, alignment) as i64;
    }
    if let Some(end) = out.last_mut() {
        *end = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_ids_become_none_and_the_first_is_told() {
        let mut out = [9; 6];
        let bad = canonical_ids([4, 0, 1, 1, -1, -2].into_iter(), 2, 4, &mut out);
        assert_eq!(out, [NONE, 0, 1, NONE, NONE, NONE]);
        assert_eq!(bad, Some(BadId { row: 0, value: 4, repeated: false }));
        let bad = canonical_ids([1, 1].into_iter(), 2, 4, &mut out[..2]);
        assert_eq!((bad, out[1]), (Some(BadId { row: 0, value: 1, repeated: true }), NONE));
        assert_eq!(canonical_ids([-1, 3].into_iter(), 2, 4, &mut out[..2]), None);
    }

    #[test]
    fn one_row_per_token_and_rank() {
        let experts = Experts::even(4, 2);
        let ids = [0, 1, 3, NONE, 2, 0, NONE, NONE];
        let (mut ranks, mut per_expert) = ([0; 2], [0; 4]);
        count(&ids, 4, &experts, &mut ranks, &mut per_expert);
        assert_eq!((ranks, per_expert), ([2, 2], [2, 1, 1, 1]));
        let (mut base, mut positions) = ([10, 20], [0; 8]);
        place(&ids, 4, &experts, &mut base, &mut positions);
        assert_eq!(positions, [10, 10, 20, NONE, 21, 11, NONE, NONE]);
        let mut list = Vec::new();
        destinations(&ids[..4], &positions[..4], &experts, &mut list);
        assert_eq!(
            list,
            [
                Destination { rank: 0, position: 10, last_k: 1 },
                Destination { rank: 1, position: 20, last_k: 2 }
            ]
        );
    }

    #[test]
    fn offsets_are_aligned() {
        let mut out = [0; 4];
        aligned_offsets(&[3, 0, 5], 4, &mut out);
        assert_eq!(out, [0, 4, 4, 12]);
    }
}
