//! One rank whose rows tell the step, the rank and the token they come from, so that a row out of place shows. Everything is
//! enqueued without waiting; what arrived is copied aside in the order of the stream and looked at later.

use crate::memory::{Arena, Array, Where};
use crate::ranks::{last_error, ok, AbortAtPanic, Buffer, Seat};
use crate::rng::Rng;
use deepep::capi::deep_ep_status_t::{self as Status, DEEP_EP_BUSY, DEEP_EP_SUCCESS};
use deepep::capi::*;

mod setup;

pub use setup::Setup;
use setup::{row, HIDDEN, ROW};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Idle,
    Sent,
    Arrived,
    Combining,
}

struct Batch {
    handle: *mut deep_ep_handle_t,
    stage: Stage,
    step: usize,
    out: deep_ep_dispatch_out_t,
    /// For rows that are not left in place.
    room: Array,
}

/// Copied aside, to be looked at.
enum Kept {
    Rows { step: usize, rows: usize, sources: usize },
    Sums { step: usize, sums: usize },
}

pub struct Rank<'a> {
    setup: &'a Setup,
    me: usize,
    _abort: AbortAtPanic,
    buffer: Buffer,
    pub arena: Arena,
    batches: Vec<Batch>,
    pool: Array,
    taken: usize,
    kept: Vec<Kept>,
    slabs: usize,
    /// Of each slab: none lies behind what all ranks together may send.
    rows: usize,
    /// What every call returned: all ranks decide alike.
    pub decisions: Vec<Status>,
}

impl<'a> Rank<'a> {
    /// `calls`: how many may be made until [`Rank::check`].
    pub fn new(
        setup: &'a Setup,
        place: Where,
        (me, seat): (usize, Seat),
        handles: usize,
        calls: usize,
    ) -> Self {
        let buffer = seat.buffer;
        let arena = Arena::new(place, me);
        let mut local = 0;
        ok(unsafe { deep_ep_buffer_local_experts(buffer.0, std::ptr::null_mut(), 0, &mut local) });
        let slabs_of = |tokens: usize| match setup.layout {
            0 => (1, setup.ranks * tokens),
            1 => (1, setup.ranks * tokens * setup.topk.min(setup.experts.div_ceil(setup.ranks))),
            2 => (setup.ranks, tokens),
            _ => (local, setup.ranks * tokens),
        };
        let ((slabs, rows), (_, capacity)) = (slabs_of(setup.tokens), slabs_of(setup.max_tokens));
        let batch = |_| {
            let mut handle = std::ptr::null_mut();
            ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
            let room = arena.array(slabs * capacity * ROW);
            Batch { handle, stage: Stage::Idle, step: 0, out: unsafe { std::mem::zeroed() }, room }
        };
        let batches = (0..handles).map(batch).collect();
        let each = slabs * rows * (ROW + 8) + setup.tokens * (2 * ROW + 8 * setup.topk) + 512;
        let pool = arena.array(calls * each);
        let decisions = Vec::new();
        Rank {
            setup,
            me,
            _abort: seat.abort_at_panic(),
            buffer,
            arena,
            batches,
            pool,
            taken: 0,
            kept: Vec::new(),
            slabs,
            rows,
            decisions,
        }
    }

    /// Poisoned memory that stays as it is until the next check.
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.pool.address() + self.taken;
        self.taken += bytes.next_multiple_of(16);
        assert!(self.taken <= self.pool.bytes(), "more calls than promised");
        at
    }

    /// Inputs of the steps to come, before anything of them is enqueued.
    pub fn prepare(&mut self, steps: std::ops::Range<usize>) -> Vec<Input> {
        steps.map(|step| self.input(step)).collect()
    }

    fn input(&mut self, step: usize) -> Input {
        let (setup, me) = (self.setup, self.me);
        let tokens = setup.tokens(step, me);
        let x: Vec<u8> = (0..tokens).flat_map(|token| row(step, me, token, 1)).collect();
        let ids: Vec<u8> = (0..tokens)
            .flat_map(|token| setup.ids(step, me, token))
            .flat_map(|id| id.to_le_bytes())
            .collect();
        let input = Input { step, tokens, x: self.take(x.len()), ids: self.take(ids.len()) };
        self.arena.write_at(input.x, &x);
        self.arena.write_at(input.ids, &ids);
        input
    }

    /// One call, or a whole operation. What is refused for want of windows is refused on all ranks.
    pub fn step(&mut self, input: &Input, dice: &mut Rng) {
        let (at, what, variant) = (dice.below(self.batches.len()), dice.below(8), dice.below(8));
        let status = match (self.batches[at].stage, what) {
            (_, 0) => unsafe { deep_ep_buffer_barrier(self.buffer.0, self.arena.stream()) },
            (Stage::Idle, 1..=2) => self.send(at, input),
            (Stage::Idle, _) => self.dispatch(at, input, variant),
            (Stage::Sent, _) => self.receive(at, variant),
            (Stage::Arrived, 1) => self.release(at),
            (Stage::Arrived, 2..=3) => self.combine_send(at, variant),
            (Stage::Arrived, _) => self.combine(at, variant),
            (Stage::Combining, _) => self.combine_receive(at),
        };
        self.decided(status);
    }

    /// A dispatch of the first handle, its rows in place.
    pub fn dispatch_in_place(&mut self, input: &Input) {
        let status = self.dispatch(0, input, 0);
        self.decided(status);
    }

    pub fn wait_counts(&self, timeout_ms: u32) -> (Status, i64) {
        let mut rows = -1;
        let (handle, counts) = (self.batches[0].handle, std::ptr::null_mut());
        (unsafe { deep_ep_handle_wait_counts(handle, counts, &mut rows, timeout_ms) }, rows)
    }

    /// Copies its rows aside.
    pub fn keep(&mut self) {
        self.keep_rows(0);
    }

    /// Copies its rows aside on a stream of the caller's choice.
    pub fn keep_on(&mut self, arena: &Arena) {
        for (to, from, bytes) in self.moves_aside(0) {
            arena.copy(to, from, bytes);
        }
    }

    /// Its rows are not read any more.
    pub fn end_reads(&mut self) {
        let status = unsafe { deep_ep_handle_release(self.batches[0].handle, self.arena.stream()) };
        self.advance(0, status, Stage::Idle);
        self.decided(status);
    }

    fn decided(&mut self, status: Status) {
        let known = [DEEP_EP_SUCCESS, DEEP_EP_BUSY].contains(&status);
        assert!(known, "rank {}: {status:?} {}, {:?}", self.me, last_error(), self.setup);
        self.decisions.push(status);
    }

    /// Everything to its end.
    pub fn finish(&mut self) {
        for at in 0..self.batches.len() {
            let status = match self.batches[at].stage {
                Stage::Sent => self.receive(at, 1),
                Stage::Combining => self.combine_receive(at),
                Stage::Idle | Stage::Arrived => DEEP_EP_SUCCESS,
            };
            self.decided(status);
        }
        ok(unsafe { deep_ep_buffer_barrier(self.buffer.0, self.arena.stream()) });
        self.check();
        for batch in &self.batches {
            ok(unsafe { deep_ep_handle_destroy(batch.handle) });
        }
        self.arena.wait();
        assert_eq!(crate::ranks::report(self.buffer).status, DEEP_EP_SUCCESS, "{:?}", self.setup);
        ok(unsafe { deep_ep_buffer_destroy(self.buffer.0) });
    }

    fn request(&self, input: &Input) -> deep_ep_dispatch_in_t {
        let mut request: deep_ep_dispatch_in_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_dispatch_in_init(&mut request, size_of::<deep_ep_dispatch_in_t>()) });
        request.num_tokens = input.tokens as i64;
        request.hidden = HIDDEN as i64;
        request.x.data = input.x as *mut _;
        request.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
        request.x.rows = input.tokens as i64;
        request.topk_idx = input.ids as *const _;
        request.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT64 as u32;
        request
    }

    /// Rows in place, or in the batch's own room.
    fn landing(&self, at: usize, variant: usize) -> deep_ep_dispatch_out_t {
        let mut out: deep_ep_dispatch_out_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_dispatch_out_init(&mut out, size_of::<deep_ep_dispatch_out_t>()) });
        if variant % 2 == 1 {
            let room = &self.batches[at].room;
            out.x.data = room.pointer();
            out.x.rows = (room.bytes() / ROW / self.slabs) as i64;
        }
        out
    }

    fn send(&mut self, at: usize, input: &Input) -> Status {
        let request = self.request(input);
        let stream = self.arena.stream();
        let status = unsafe { deep_ep_handle_dispatch_send(self.batches[at].handle, &request, stream) };
        self.advance(at, status, Stage::Sent);
        if status == DEEP_EP_SUCCESS {
            self.batches[at].step = input.step;
        }
        status
    }

    fn receive(&mut self, at: usize, variant: usize) -> Status {
        let (mut out, stream) = (self.landing(at, variant), self.arena.stream());
        let status = unsafe { deep_ep_handle_dispatch_recv(self.batches[at].handle, &mut out, stream) };
        self.batches[at].out = out;
        self.advance(at, status, Stage::Arrived)
    }

    fn dispatch(&mut self, at: usize, input: &Input, variant: usize) -> Status {
        let (request, mut out, stream) =
            (self.request(input), self.landing(at, variant), self.arena.stream());
        let status = unsafe { deep_ep_handle_dispatch(self.batches[at].handle, &request, &mut out, stream) };
        if status == DEEP_EP_SUCCESS {
            (self.batches[at].out, self.batches[at].step) = (out, input.step);
        }
        self.advance(at, status, Stage::Arrived)
    }

    fn advance(&mut self, at: usize, status: Status, stage: Stage) -> Status {
        if status == DEEP_EP_SUCCESS {
            self.batches[at].stage = stage;
        }
        status
    }

    fn release(&mut self, at: usize) -> Status {
        self.keep_rows(at);
        let status = unsafe { deep_ep_handle_release(self.batches[at].handle, self.arena.stream()) };
        self.advance(at, status, Stage::Idle)
    }

    /// The received rows, given back as they are: from where they lie, or through the library's memory.
    fn giving(&mut self, at: usize, variant: usize) -> Result<deep_ep_combine_in_t, Status> {
        let (handle, stream, received) =
            (self.batches[at].handle, self.arena.stream(), self.batches[at].out.x);
        let mut input: deep_ep_combine_in_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_combine_in_init(&mut input, size_of::<deep_ep_combine_in_t>()) });
        input.hidden = HIDDEN as i64;
        input.flags = if variant / 2 % 2 == 1 && self.setup.by_expert() { DEEP_EP_COMBINE_EXACT } else { 0 };
        input.x = received;
        if variant >= 4 {
            input.x = unsafe { std::mem::zeroed() };
            input.x.dtype = deep_ep_dtype_t::DEEP_EP_BF16 as u32;
            match unsafe { deep_ep_handle_combine_input(handle, &mut input.x, stream) } {
                DEEP_EP_SUCCESS => {}
                status => return Err(status),
            }
            for slab in 0..self.slabs {
                let from = received.data as usize + slab * received.slot_stride as usize;
                let to = input.x.data as usize + slab * input.x.slot_stride as usize;
                self.arena.copy(to, from, self.rows * ROW);
            }
        }
        Ok(input)
    }

    fn combine_send(&mut self, at: usize, variant: usize) -> Status {
        self.keep_rows(at);
        let status = match self.giving(at, variant) {
            Ok(input) => unsafe {
                deep_ep_handle_combine_send(self.batches[at].handle, &input, self.arena.stream())
            },
            Err(status) => status,
        };
        self.advance(at, status, Stage::Combining)
    }

    fn summing(&mut self, at: usize) -> (deep_ep_combine_out_t, Kept) {
        let step = self.batches[at].step;
        let tokens = self.setup.tokens(step, self.me);
        let sums = self.take(tokens * ROW);
        let mut output: deep_ep_combine_out_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_combine_out_init(&mut output, size_of::<deep_ep_combine_out_t>()) });
        output.x.data = sums as *mut _;
        output.x.rows = tokens as i64;
        (output, Kept::Sums { step, sums })
    }

    fn combine_receive(&mut self, at: usize) -> Status {
        let (output, kept) = self.summing(at);
        let status =
            unsafe { deep_ep_handle_combine_recv(self.batches[at].handle, &output, self.arena.stream()) };
        self.kept.extend((status == DEEP_EP_SUCCESS).then_some(kept));
        self.advance(at, status, Stage::Idle)
    }

    fn combine(&mut self, at: usize, variant: usize) -> Status {
        self.keep_rows(at);
        let (output, kept) = self.summing(at);
        let status = match self.giving(at, variant) {
            Ok(input) => unsafe {
                deep_ep_handle_combine(self.batches[at].handle, &input, &output, self.arena.stream())
            },
            Err(status) => status,
        };
        self.kept.extend((status == DEEP_EP_SUCCESS).then_some(kept));
        self.advance(at, status, Stage::Idle)
    }

    /// Copies the rows of a dispatch aside, at the last moment at which they must be there.
    fn keep_rows(&mut self, at: usize) {
        for (to, from, bytes) in self.moves_aside(at) {
            self.arena.copy(to, from, bytes);
        }
    }

    /// Destination, origin and bytes of what is to be copied aside.
    fn moves_aside(&mut self, at: usize) -> Vec<(usize, usize, usize)> {
        let (out, step, count) = (self.batches[at].out, self.batches[at].step, self.rows);
        let (rows, sources) = (self.take(self.slabs * count * ROW), self.take(self.slabs * count * 8));
        self.kept.push(Kept::Rows { step, rows, sources });
        let of_slab = |slab: usize| {
            let from = out.x.data as usize + slab * out.x.slot_stride as usize;
            let source = out.row_source as usize + slab * out.x.rows as usize * 8;
            let (rows, sources) = (rows + slab * count * ROW, sources + slab * count * 8);
            [(rows, from, count * ROW), (sources, source, count * 8)]
        };
        (0..self.slabs).flat_map(of_slab).collect()
    }

    /// Waits, and looks at everything that was copied aside.
    pub fn check(&mut self) {
        self.arena.wait();
        for kept in std::mem::take(&mut self.kept) {
            match kept {
                Kept::Rows { step, rows, sources } => self.check_rows(step, rows, sources),
                Kept::Sums { step, sums } => self.check_sums(step, sums),
            }
        }
        self.taken = 0;
    }

    fn check_rows(&self, step: usize, rows: usize, sources: usize) {
        let (setup, count) = (self.setup, self.slabs * self.rows);
        let (rows, sources) = (self.arena.read_at(rows, count * ROW), self.arena.read_at(sources, count * 8));
        let mut found = Vec::new();
        for (bytes, source) in rows.chunks_exact(ROW).zip(sources.chunks_exact(8)) {
            let source = i64::from_le_bytes(source.try_into().unwrap());
            if source >= 0 {
                let (rank, token) = (source as usize / setup.max_tokens, source as usize % setup.max_tokens);
                assert!(
                    bytes == row(step, rank, token, 1),
                    "rank {}, step {step}: token {token} of rank {rank} is {:?}, {setup:?}",
                    self.me,
                    &bytes[..16]
                );
                found.push((rank, token));
            }
        }
        found.sort_unstable();
        let mut expected = Vec::new();
        for (rank, token) in
            (0..setup.ranks).flat_map(|rank| (0..setup.tokens(step, rank)).map(move |token| (rank, token)))
        {
            let times = setup.copies(step, rank, token).get(&self.me).copied().unwrap_or(0);
            expected.extend(std::iter::repeat_n((rank, token), times));
        }
        assert_eq!(found, expected, "rank {}, step {step}, {setup:?}", self.me);
    }

    fn check_sums(&self, step: usize, sums: usize) {
        let tokens = self.setup.tokens(step, self.me);
        let sums = self.arena.read_at(sums, tokens * ROW);
        for (token, sum) in sums.chunks_exact(ROW).enumerate() {
            let times = self.setup.copies(step, self.me, token).values().sum();
            assert!(
                sum == row(step, self.me, token, times),
                "rank {}, step {step}: the sum of token {token} is {:?} and not {times} times its row, {:?}",
                self.me,
                &sum[..16],
                self.setup
            );
        }
    }
}

/// What a step sends.
pub struct Input {
    pub step: usize,
    tokens: usize,
    x: usize,
    ids: usize,
}
