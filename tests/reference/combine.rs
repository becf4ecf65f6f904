//! The sums of a combine, in the order and with the roundings that the contract fixes.

use super::numbers::{decode_row, encode, encode_row};
use super::{clean, Arrival, Layout, Setup, Slot, Source};

/// How a combine is done, on all ranks alike.
#[derive(Clone, Debug)]
pub struct Merge {
    pub dtype: u32,
    pub hidden: usize,
    pub exact: bool,
    pub weights_of_dispatch: bool,
}

/// What one rank passes to a combine, and what starts its own sums.
#[derive(Clone, Debug, Default)]
pub struct MergeInput {
    /// One row of bytes per slot.
    pub rows: Vec<Vec<u8>>,
    pub row_weights: Option<Vec<f32>>,
    pub topk_weights: Option<Vec<f32>>,
    pub carried_weights: Option<Vec<f32>>,
    /// Rows of bytes, one per token.
    pub bias: [Option<Vec<Vec<u8>>>; 2],
}

/// What one rank gets: a row of bytes per token, and topk carried weights per token.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    pub rows: Vec<Vec<u8>>,
    pub carried_weights: Vec<f32>,
}

pub fn combine(
    setup: &Setup,
    sources: &[Source],
    arrivals: &[Arrival],
    inputs: &[MergeInput],
    merge: &Merge,
) -> Vec<Merged> {
    let all = All { setup, sources, arrivals, inputs, merge, places: places(setup, sources, arrivals) };
    (0..setup.ranks).map(|rank| all.rank(rank)).collect()
}

/// For each source, token and k: where the row of that k lies on the rank that owns its expert.
type Places = Vec<Vec<Vec<Option<usize>>>>;

fn places(setup: &Setup, sources: &[Source], arrivals: &[Arrival]) -> Places {
    let mut places: Places =
        sources.iter().map(|source| vec![vec![None; setup.topk]; source.tokens()]).collect();
    for (rank, arrival) in arrivals.iter().enumerate() {
        for (position, &slot) in arrival.slots.iter().enumerate() {
            let Slot::Row { source, token, k } = slot else { continue };
            let experts = clean(setup, &sources[source], token);
            for (place, expert) in experts.iter().enumerate() {
                let here = expert.is_some_and(|expert| setup.owner[expert] == rank);
                if here && k.is_none_or(|k| k == place) {
                    places[source][token][place] = Some(position);
                }
            }
        }
    }
    places
}

struct All<'a> {
    setup: &'a Setup,
    sources: &'a [Source],
    arrivals: &'a [Arrival],
    inputs: &'a [MergeInput],
    merge: &'a Merge,
    places: Places,
}

impl All<'_> {
    fn rank(&self, rank: usize) -> Merged {
        let mut merged = Merged::default();
        for token in 0..self.sources[rank].tokens() {
            let mut sum = self.start(rank, token);
            if self.setup.layout.by_expert() {
                if self.merge.exact {
                    self.add_exact(rank, token, &mut sum);
                } else {
                    self.add_reduced(rank, token, &mut sum);
                }
            } else {
                self.add_by_rank(rank, token, &mut sum);
            }
            merged.rows.push(encode_row(self.merge.dtype, &sum));
            merged.carried_weights.extend(self.carried(rank, token));
        }
        merged
    }

    fn start(&self, rank: usize, token: usize) -> Vec<f32> {
        let bias = |i: usize| {
            self.inputs[rank].bias[i].as_ref().map(|rows| decode_row(self.merge.dtype, &rows[token]))
        };
        match (bias(0), bias(1)) {
            (None, None) => vec![0.0; self.merge.hidden],
            (Some(one), None) | (None, Some(one)) => one,
            (Some(first), Some(second)) => first.iter().zip(&second).map(|(a, b)| a + b).collect(),
        }
    }

    /// The rank of each k that has an expert.
    fn owners(&self, rank: usize, token: usize) -> Vec<Option<usize>> {
        clean(self.setup, &self.sources[rank], token)
            .iter()
            .map(|expert| expert.map(|expert| self.setup.owner[expert]))
            .collect()
    }

    fn row(&self, owner: usize, position: usize) -> Vec<f32> {
        decode_row(self.merge.dtype, &self.inputs[owner].rows[position])
    }

    /// A row times its row weight, rounded to the type of the rows, as it crosses.
    fn crossing(&self, owner: usize, position: usize) -> Vec<f32> {
        let mut row = self.row(owner, position);
        if let Some(weights) = &self.inputs[owner].row_weights {
            for value in &mut row {
                *value = self.round(weights[position].mul_add(*value, 0.0));
            }
        } else {
            for value in &mut row {
                *value = self.round(*value);
            }
        }
        row
    }

    fn round(&self, value: f32) -> f32 {
        super::numbers::decode(self.merge.dtype, encode(self.merge.dtype, value))
    }

    fn add_by_rank(&self, rank: usize, token: usize, sum: &mut [f32]) {
        let owners = self.owners(rank, token);
        for owner in 0..self.setup.ranks {
            let Some(k) = owners.iter().position(|&o| o == Some(owner)) else { continue };
            let Some(position) = self.places[rank][token][k] else { continue };
            for (total, value) in sum.iter_mut().zip(self.crossing(owner, position)) {
                *total += value;
            }
        }
    }

    fn add_exact(&self, rank: usize, token: usize, sum: &mut [f32]) {
        let owners = self.owners(rank, token);
        for k in 0..self.setup.topk {
            let (Some(owner), Some(position)) = (owners[k], self.places[rank][token][k]) else { continue };
            let weight = if self.merge.weights_of_dispatch {
                Some(self.sources[rank].weight(token, k, self.setup.topk))
            } else {
                self.inputs[rank].topk_weights.as_ref().map(|weights| weights[token * self.setup.topk + k])
            };
            for (total, value) in sum.iter_mut().zip(self.crossing(owner, position)) {
                *total = match weight {
                    Some(weight) => weight.mul_add(value, *total),
                    None => *total + value,
                };
            }
        }
    }

    fn add_reduced(&self, rank: usize, token: usize, sum: &mut [f32]) {
        let owners = self.owners(rank, token);
        for (k, &owner) in owners.iter().enumerate() {
            let Some(owner) = owner else { continue };
            if owners[k + 1..].contains(&Some(owner)) {
                continue; // a rank's partial has its turn at the largest k the token has there
            }
            let partial = self.partial(rank, token, owner, &owners);
            for (total, value) in sum.iter_mut().zip(partial.unwrap_or_default()) {
                *total += value;
            }
        }
    }

    /// The sum that `owner` makes of its rows of a token, rounded once; None: it has none.
    fn partial(&self, rank: usize, token: usize, owner: usize, owners: &[Option<usize>]) -> Option<Vec<f32>> {
        let mut partial = None;
        for (k, &here) in owners.iter().enumerate() {
            if here != Some(owner) {
                continue;
            }
            let Some(position) = self.places[rank][token][k] else { continue };
            let weight = if self.merge.weights_of_dispatch {
                Some(self.sources[rank].weight(token, k, self.setup.topk))
            } else {
                self.inputs[owner].row_weights.as_ref().map(|weights| weights[position])
            };
            let sum = partial.get_or_insert_with(|| vec![0.0f32; self.merge.hidden]);
            for (total, value) in sum.iter_mut().zip(self.row(owner, position)) {
                *total = match weight {
                    Some(weight) => weight.mul_add(value, *total),
                    None => *total + value,
                };
            }
        }
        partial.map(|sum| sum.into_iter().map(|value| self.round(value)).collect())
    }

    fn carried(&self, rank: usize, token: usize) -> Vec<f32> {
        let owners = self.owners(rank, token);
        let mut result = Vec::new();
        for k in 0..self.setup.topk {
            let mut sum = 0.0f32;
            for owner in 0..self.setup.ranks {
                let Some(weights) = &self.inputs[owner].carried_weights else { continue };
                if owners[k].is_none() {
                    continue;
                }
                if self.setup.layout.by_expert() {
                    if owners[k] == Some(owner) {
                        if let Some(position) = self.places[rank][token][k] {
                            sum += weights[position];
                        }
                    }
                } else if let Some(at) = owners.iter().position(|&o| o == Some(owner)) {
                    if let Some(position) = self.places[rank][token][at] {
                        sum += weights[position * self.setup.topk + k];
                    }
                }
            }
            result.push(sum);
        }
        result
    }
}

/// Rows of topk columns or of one, as the layout's side outputs have.
pub fn columns(setup: &Setup) -> usize {
    match setup.layout {
        Layout::PackedByRank | Layout::SlottedByRank => setup.topk,
        _ => 1,
    }
}
