//! The naive model: what every rank must receive and what every combine must return, from the inputs of all ranks
//! at once. Plain loops over plain lists; nothing of the library is used.

#![allow(dead_code)] // each test program uses a part

pub mod combine;
pub mod numbers;

pub use combine::{combine, Merge, MergeInput, Merged};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    PackedByRank,
    PackedByExpert,
    SlottedByRank,
    SlottedByExpert,
}

pub const LAYOUTS: [Layout; 4] =
    [Layout::PackedByRank, Layout::PackedByExpert, Layout::SlottedByRank, Layout::SlottedByExpert];

impl Layout {
    pub fn by_expert(self) -> bool {
        matches!(self, Layout::PackedByExpert | Layout::SlottedByExpert)
    }

    pub fn slotted(self) -> bool {
        matches!(self, Layout::SlottedByRank | Layout::SlottedByExpert)
    }
}

/// What all ranks agree on.
#[derive(Clone, Debug)]
pub struct Setup {
    pub layout: Layout,
    pub ranks: usize,
    pub max_tokens: usize,
    pub experts: usize,
    pub topk: usize,
    /// 1 where nothing is aligned.
    pub alignment: usize,
    /// Rows over the link; None: no limit.
    pub max_recv_rows: Option<usize>,
    /// Rows after expansion; None: no limit.
    pub max_expert_rows: Option<usize>,
    /// The rank of each expert.
    pub owner: Vec<usize>,
    pub alive: Vec<bool>,
}

impl Setup {
    pub fn new(layout: Layout, ranks: usize, max_tokens: usize, experts: usize, topk: usize) -> Setup {
        Setup {
            layout,
            ranks,
            max_tokens,
            experts,
            topk,
            alignment: 1,
            max_recv_rows: None,
            max_expert_rows: None,
            owner: even_owners(experts, ranks),
            alive: vec![true; ranks],
        }
    }

    /// Global ids of a rank's experts, ascending; position is the local id.
    pub fn local_experts(&self, rank: usize) -> Vec<usize> {
        (0..self.experts).filter(|&expert| self.owner[expert] == rank).collect()
    }

    pub fn local_id(&self, expert: usize) -> usize {
        self.local_experts(self.owner[expert]).iter().position(|&e| e == expert).unwrap()
    }

    /// Slabs of a slotted output on `rank`, and rows in each; packed: one slab without a fixed end.
    pub fn slabs(&self, rank: usize, limit: Option<usize>) -> (usize, usize) {
        match self.layout {
            Layout::SlottedByRank => (self.ranks, limit.unwrap_or(self.max_tokens)),
            Layout::SlottedByExpert => {
                (self.local_experts(rank).len(), limit.unwrap_or(self.ranks * self.max_tokens))
            }
            _ => (1, usize::MAX),
        }
    }
}

/// The first `experts % ranks` ranks own one expert more.
pub fn even_owners(experts: usize, ranks: usize) -> Vec<usize> {
    let mut owners = Vec::new();
    for rank in 0..ranks {
        let mut count = experts / ranks;
        if rank < experts % ranks {
            count += 1;
        }
        for _ in 0..count {
            owners.push(rank);
        }
    }
    owners
}

/// What one rank sends, in the form in which it crosses.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Ids as the caller wrote them, topk per token.
    pub ids: Vec<i64>,
    /// None: all 1.
    pub weights: Option<Vec<f32>>,
    pub rows: Vec<Vec<u8>>,
    pub scales: Vec<Vec<u8>>,
}

impl Source {
    pub fn tokens(&self) -> usize {
        self.rows.len()
    }

    pub fn weight(&self, token: usize, k: usize, topk: usize) -> f32 {
        self.weights.as_ref().map_or(1.0, |weights| weights[token * topk + k])
    }
}

/// A token's experts: bad and repeated ids, and those of ranks that are left out, are none.
pub fn clean(setup: &Setup, source: &Source, token: usize) -> Vec<Option<usize>> {
    let row = &source.ids[token * setup.topk..(token + 1) * setup.topk];
    let mut experts = Vec::new();
    for (k, &id) in row.iter().enumerate() {
        let bad = id < 0 || id >= setup.experts as i64 || row[..k].contains(&id);
        let dead = !bad && !setup.alive[setup.owner[id as usize]];
        experts.push(if bad || dead { None } else { Some(id as usize) });
    }
    experts
}

/// Row and value of the first id that is neither an expert nor -1, or that repeats one.
pub fn first_bad_id(setup: &Setup, source: &Source) -> Option<(usize, i64)> {
    for token in 0..source.tokens() {
        let row = &source.ids[token * setup.topk..(token + 1) * setup.topk];
        for (k, &id) in row.iter().enumerate() {
            let out_of_range = id < -1 || id >= setup.experts as i64;
            let repeated = id >= 0 && row[..k].contains(&id);
            if out_of_range || repeated {
                return Some((token, id));
            }
        }
    }
    None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A token's row; by expert also the place in its list of experts.
    Row { source: usize, token: usize, k: Option<usize> },
    /// In an expert's aligned extent.
    Pad,
    /// Nothing is here.
    Past,
}

/// What one rank holds after a dispatch. Positions beyond a list are past the end.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    pub slots: Vec<Slot>,
    /// By rank topk per slot, by expert one.
    pub ids: Vec<i32>,
    pub weights: Vec<f32>,
    pub row_source: Vec<i64>,
    pub rank_counts: Vec<i32>,
    pub expert_counts: Vec<i32>,
    pub expert_offsets: Vec<i64>,
    pub true_rows: [i64; 2],
    pub source_ranges: Vec<i32>,
    /// What wait_counts calls rows.
    pub rows: i64,
}

/// Dispatch: one arrival per rank. `limits`: the caller's rows on each rank, in all (packed) or per slab (slotted).
pub fn dispatch(setup: &Setup, sources: &[Source], limits: &[Option<usize>]) -> Vec<Arrival> {
    (0..setup.ranks).map(|rank| arrive(setup, sources, limits[rank], rank)).collect()
}

fn arrive(setup: &Setup, sources: &[Source], limit: Option<usize>, rank: usize) -> Arrival {
    let mut sent = Vec::new();
    for (source, from) in sources.iter().enumerate() {
        for token in 0..from.tokens() {
            if clean(setup, from, token).iter().flatten().any(|&expert| setup.owner[expert] == rank) {
                sent.push((source, token));
            }
        }
    }
    let mut fits = sent.clone();
    if !setup.layout.slotted() {
        fits.truncate(setup.max_recv_rows.unwrap_or(usize::MAX));
        if setup.layout == Layout::PackedByRank {
            fits.truncate(limit.unwrap_or(usize::MAX));
        }
    }
    let slab_rows = setup.slabs(rank, limit).1;
    let mut arrival = Arrival { true_rows: [sent.len() as i64; 2], ..Arrival::default() };
    match setup.layout {
        Layout::PackedByRank => {
            for &(source, token) in &fits {
                arrival.slots.push(Slot::Row { source, token, k: None });
            }
        }
        Layout::SlottedByRank => {
            fits.clear();
            for source in 0..setup.ranks {
                let mut slab = Vec::new();
                for &(from, token) in sent.iter().filter(|(from, _)| *from == source).take(slab_rows) {
                    fits.push((from, token));
                    slab.push(Slot::Row { source: from, token, k: None });
                }
                slab.resize(slab_rows, Slot::Past);
                arrival.slots.extend(slab);
            }
        }
        Layout::PackedByExpert => pack_by_expert(setup, sources, &sent, &fits, limit, rank, &mut arrival),
        Layout::SlottedByExpert => {
            arrival.true_rows[1] = 0;
            for list in expand(setup, sources, &fits, rank) {
                arrival.true_rows[1] += list.len() as i64;
                let mut slab = list;
                slab.resize(slab_rows, Slot::Past);
                arrival.slots.extend(slab);
            }
        }
    }
    describe(setup, sources, rank, slab_rows, &mut arrival);
    // Rows over the link, also where each became several.
    arrival.rank_counts = vec![0; setup.ranks];
    for (source, _) in fits {
        arrival.rank_counts[source] += 1;
    }
    arrival
}

/// For each local expert its rows by (source, token).
fn expand(setup: &Setup, sources: &[Source], rows: &[(usize, usize)], rank: usize) -> Vec<Vec<Slot>> {
    let mut lists = Vec::new();
    for expert in setup.local_experts(rank) {
        let mut list = Vec::new();
        for &(source, token) in rows {
            let experts = clean(setup, &sources[source], token);
            if let Some(k) = experts.iter().position(|&e| e == Some(expert)) {
                list.push(Slot::Row { source, token, k: Some(k) });
            }
        }
        lists.push(list);
    }
    lists
}

fn pack_by_expert(
    setup: &Setup,
    sources: &[Source],
    sent: &[(usize, usize)],
    fits: &[(usize, usize)],
    limit: Option<usize>,
    rank: usize,
    arrival: &mut Arrival,
) {
    let aligned = |count: usize| count.div_ceil(setup.alignment) * setup.alignment;
    arrival.true_rows[1] =
        expand(setup, sources, sent, rank).iter().map(|list| aligned(list.len()) as i64).sum();
    let capacity = setup.max_expert_rows.unwrap_or(usize::MAX).min(limit.unwrap_or(usize::MAX));
    arrival.expert_offsets.push(0);
    for list in expand(setup, sources, fits, rank) {
        let mut extent = list;
        extent.resize(aligned(extent.len()), Slot::Pad);
        arrival.slots.extend(extent);
        arrival.expert_offsets.push(arrival.slots.len().min(capacity) as i64);
    }
    arrival.slots.truncate(capacity);
}

/// Fills in everything that follows from the slots.
fn describe(setup: &Setup, sources: &[Source], rank: usize, slab: usize, arrival: &mut Arrival) {
    let local = setup.local_experts(rank);
    arrival.expert_counts = vec![0; local.len()];
    let columns = if setup.layout.by_expert() { 1 } else { setup.topk };
    let mut present = 0;
    for &slot in &arrival.slots {
        let Slot::Row { source, token, k } = slot else {
            arrival.ids.extend(vec![-1; columns]);
            arrival.weights.extend(vec![0.0; columns]);
            arrival.row_source.push(-1);
            continue;
        };
        present += 1;
        arrival.row_source.push((source * setup.max_tokens + token) as i64);
        let experts = clean(setup, &sources[source], token);
        for (place, expert) in experts.iter().enumerate() {
            if k.is_some_and(|k| k != place) {
                continue;
            }
            let id = expert.and_then(|expert| local.iter().position(|&e| e == expert));
            match id {
                Some(id) => {
                    arrival.expert_counts[id] += 1;
                    arrival.ids.push(id as i32);
                    arrival.weights.push(sources[source].weight(token, place, setup.topk));
                }
                None => {
                    arrival.ids.push(-1);
                    arrival.weights.push(0.0);
                }
            }
        }
    }
    arrival.rows = arrival.expert_offsets.last().copied().unwrap_or(present);
    if setup.layout == Layout::SlottedByExpert {
        for expert in 0..local.len() {
            let rows = &arrival.slots[expert * slab..(expert + 1) * slab];
            let mut begin = 0;
            for from in 0..setup.ranks {
                let here = |slot: &&Slot| matches!(slot, Slot::Row { source, .. } if *source == from);
                let count = rows.iter().filter(here).count() as i32;
                arrival.source_ranges.extend([begin, count]);
                begin += count;
            }
        }
    }
}
