//! Which rank owns which expert.

use crate::error::{Error, Result};

/// Where one expert lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    pub rank: u32,
    /// Position among the rank's experts in ascending global id.
    pub local: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Experts {
    homes: Vec<Home>,
    per_rank: Vec<Vec<i32>>,
}

impl Experts {
    /// The even split: the first `num_experts % num_ranks` ranks own one expert more.
    pub fn even(num_experts: usize, num_ranks: usize) -> Experts {
        let (each, more) = (num_experts / num_ranks, num_experts % num_ranks);
        let owned = |rank: usize| each + usize::from(rank < more);
        Self::from_ranks(num_ranks, (0..num_ranks).flat_map(|rank| std::iter::repeat_n(rank, owned(rank))))
    }

    /// A map from expert to rank.
    pub fn mapped(ranks: &[i32], num_ranks: usize) -> Result<Experts> {
        if let Some(expert) = ranks.iter().position(|&rank| rank < 0 || rank as usize >= num_ranks) {
            return Err(Error::invalid_argument(format_args!(
                "expert_rank[{expert}] is {}, which is not in 0 .. {}",
                ranks[expert],
                num_ranks - 1
            )));
        }
        Ok(Self::from_ranks(num_ranks, ranks.iter().map(|&rank| rank as usize)))
    }

    fn from_ranks(num_ranks: usize, ranks: impl Iterator<Item = usize>) -> Experts {
        let mut per_rank = vec![Vec::new(); num_ranks];
        let homes = ranks
            .enumerate()
            .map(|(expert, rank)| {
                per_rank[rank].push(expert as i32);
                Home { rank: rank as u32, local: per_rank[rank].len() as u32 - 1 }
            })
            .collect();
        Experts { homes, per_rank }
    }

    pub fn count(&self) -> usize {
        self.homes.len()
    }

    pub fn home(&self, expert: usize) -> Home {
        self.homes[expert]
    }

    /// Global ids of a rank's experts, ascending.
    pub fn of_rank(&self, rank: usize) -> &[i32] {
        &self.per_rank[rank]
    }

    /// The most experts any rank owns.
    pub fn most_local(&self) -> usize {
        self.per_rank.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// A number that differs when the assignment differs, for comparing it across ranks (FNV-1a).
    pub fn digest(&self) -> u64 {
        self.homes
            .iter()
            .flat_map(|home| home.rank.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ranks_own_one_more() {
        let experts = Experts::even(8, 3);
        assert_eq!(experts.of_rank(0), [0, 1, 2]);
        assert_eq!(experts.of_rank(1), [3, 4, 5]);
        assert_eq!(experts.of_rank(2), [6, 7]);
        assert_eq!(experts.home(6), Home { rank: 2, local: 0 });
        assert!(Experts::even(2, 3).of_rank(2).is_empty());
    }

    #[test]
    fn a_map_keeps_ascending_local_ids() {
        let experts = Experts::mapped(&[1, 0, 1, 1], 2).unwrap();
        assert_eq!(experts.of_rank(1), [0, 2, 3]);
        assert_eq!(experts.home(3), Home { rank: 1, local: 2 });
        assert_ne!(experts.digest(), Experts::even(4, 2).digest());
        assert!(Experts::mapped(&[0, 2], 2).unwrap_err().text.contains("expert_rank[1] is 2"));
    }
}
