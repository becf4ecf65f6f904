//! Orders of calls.

use super::decide::{op, Call, How, Op, Place};

/// Send 1 .. send D+1, receive 1, send D+2, receive 2 ..: D operations are unreceived whenever another is sent.
pub fn steady(n: usize, depth: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    for x in 0..n + depth {
        calls.extend((x < n).then_some(Call::Send(x)));
        calls.extend((x >= depth).then(|| Call::Recv(x - depth)));
    }
    calls
}

/// Every program of `n` operations in which at most `depth` are unreceived when one is sent.
pub fn bounded(n: usize, depth: usize, in_order: bool) -> Vec<Vec<Call>> {
    fn go(
        n: usize,
        depth: usize,
        in_order: bool,
        calls: &mut Vec<Call>,
        sent: usize,
        open: &[usize],
        all: &mut Vec<Vec<Call>>,
    ) {
        if sent == n && open.is_empty() {
            all.push(calls.clone());
        }
        if sent < n && open.len() <= depth {
            calls.push(Call::Send(sent));
            go(n, depth, in_order, calls, sent + 1, &[open, &[sent]].concat(), all);
            calls.pop();
        }
        for &x in if in_order { &open[..open.len().min(1)] } else { open } {
            calls.push(Call::Recv(x));
            let rest: Vec<_> = open.iter().copied().filter(|&y| y != x).collect();
            go(n, depth, in_order, calls, sent, &rest, all);
            calls.pop();
        }
    }
    let mut all = Vec::new();
    go(n, depth, in_order, &mut Vec::new(), 0, &[], &mut all);
    all
}

/// Where a program does not say when a pulled window is taken: just before its send.
pub fn with_takes(ops: &[Op], calls: &[Call]) -> Vec<Call> {
    let mut out = Vec::new();
    for &call in calls {
        if let Call::Send(x) = call {
            if ops[x].how == How::Pull && !calls.contains(&Call::Take(x)) {
                out.push(Call::Take(x));
            }
        }
        out.push(call);
    }
    out
}

/// Where a program does not say when the reads of pushed rows end: before the next send, or, with `kept`, when
/// that many more sends have begun.
pub fn with_ends(ops: &[Op], calls: &[Call], kept: usize) -> Vec<Call> {
    let read_by_combine = |x| ops.iter().any(|o| o.reads == Some(x));
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut out = Vec::new();
    for &call in calls {
        if let Call::Send(_) = call {
            out.extend(open.iter().filter(|o| o.1 == 0).map(|o| Call::End(o.0)));
            open.retain(|o| o.1 > 0);
            open.iter_mut().for_each(|o| o.1 -= 1);
        }
        if let Call::Recv(x) = call {
            if ops[x].how != How::Pull && !calls.contains(&Call::End(x)) && !read_by_combine(x) {
                open.push((x, kept));
            }
        }
        out.push(call);
    }
    out
}

/// Windows to be pulled are taken `ahead` sends before their own.
pub fn taken_ahead(calls: &[Call], n: usize, ahead: usize) -> Vec<Call> {
    let mut out: Vec<_> = (0..ahead.min(n)).map(Call::Take).collect();
    for &call in calls {
        if let Call::Send(x) = call {
            out.extend((x + ahead < n).then_some(Call::Take(x + ahead)));
        }
        out.push(call);
    }
    out
}

/// One pool, each operation in the window given.
pub fn frozen(windows: impl IntoIterator<Item = usize>, how: How) -> Vec<Op> {
    windows.into_iter().map(|w| op(how, 0, w)).collect()
}

/// `n` operations over `count` windows in turn.
pub fn in_turn(count: usize, n: usize, how: How) -> Vec<Op> {
    frozen((0..n).map(|x| x % count), how)
}

/// Dispatches (`d`) and combines (`c`), each kind with its own windows in turn.
pub fn kinds(pattern: &str, dispatch: (usize, How), combine: (usize, How)) -> Vec<Op> {
    let mut used = [0, 0];
    pattern
        .chars()
        .map(|kind| {
            let (pool, (count, how)) = if kind == 'd' { (0, dispatch) } else { (1, combine) };
            used[pool] += 1;
            op(how, pool, (used[pool] - 1) % count)
        })
        .collect()
}

/// Every sequence of `n` numbers below `base`.
pub fn sequences(n: usize, base: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..base.pow(n as u32)).map(move |code| (0..n).map(|at| code / base.pow(at as u32) % base).collect())
}

/// Every order of `n` dispatches and combines.
pub fn patterns(n: usize) -> impl Iterator<Item = String> {
    sequences(n, 2).map(|kinds| kinds.iter().map(|&kind| if kind == 0 { 'd' } else { 'c' }).collect())
}

/// Every order of `n` calls with at most `open` handles open, the new one included. A handle's rows are read
/// until its combine, whose own windows are plenty; windows for dispatches are chosen by the library. With
/// `in_place` the combine reads the rows itself.
pub fn handles(n: usize, depth: usize, open: usize, how: How, in_place: bool) -> Vec<(Vec<Op>, Vec<Call>)> {
    struct Search {
        n: usize,
        depth: usize,
        limit: usize,
        how: How,
        in_place: bool,
        all: Vec<(Vec<Op>, Vec<Call>)>,
    }
    fn go(s: &mut Search, ops: &[Op], open: &[usize], ends: &[(usize, usize)]) {
        let (x, in_place) = (ops.len(), s.in_place);
        if x == s.n {
            let mut calls = Vec::new();
            for call in steady(s.n, s.depth) {
                let here = |end: &&(usize, usize)| call == Call::Send(end.1) && !in_place;
                calls.extend(ends.iter().filter(here).map(|end| Call::End(end.0)));
                calls.push(call);
            }
            s.all.push((ops.to_vec(), calls));
            return;
        }
        if open.len() < s.limit {
            let dispatch = Op { how: s.how, pool: 0, place: Place::Chosen, reads: None };
            go(s, &[ops, &[dispatch]].concat(), &[open, &[x]].concat(), ends);
        }
        let depth = s.depth;
        for &y in open.iter().filter(|&&y| y + depth < x) {
            let reads = in_place.then_some(y);
            let combine = Op { reads, ..op(How::Push, 1, x % (2 + 2 * depth)) };
            let rest: Vec<_> = open.iter().copied().filter(|&z| z != y).collect();
            go(s, &[ops, &[combine]].concat(), &rest, &[ends, &[(y, x)]].concat());
        }
    }
    let mut s = Search { n, depth, limit: open, how, in_place, all: Vec::new() };
    go(&mut s, &[], &[], &[]);
    s.all
}

/// Replays of two graphs and eager calls in every order, cut at `limit` operations. The windows are chosen
/// when a graph is captured or an eager call is made; a graph keeps its windows.
pub fn replays(limit: usize) -> Vec<Vec<Op>> {
    let mut found = Vec::new();
    let graph = |longest: usize| (1..=longest).flat_map(patterns).collect::<Vec<_>>();
    for first in graph(3) {
        for second in graph(2) {
            for order in sequences(4, 4) {
                let mut used = [0, 0];
                let mut take = |kind: char| {
                    let pool = usize::from(kind == 'c');
                    used[pool] += 1;
                    (pool, (used[pool] - 1) % 2)
                };
                let graphs = [&first, &second].map(|g| g.chars().map(&mut take).collect::<Vec<_>>());
                let mut run = Vec::new();
                for what in order {
                    match what {
                        2 | 3 => run.push(take(if what == 2 { 'd' } else { 'c' })),
                        graph => run.extend(&graphs[graph]),
                    }
                }
                run.truncate(limit);
                found.push(run);
            }
        }
    }
    found.sort();
    found.dedup();
    let ops = |run: Vec<(usize, usize)>| run.iter().map(|&(pool, w)| op(How::Push, pool, w)).collect();
    found.into_iter().map(ops).collect()
}
