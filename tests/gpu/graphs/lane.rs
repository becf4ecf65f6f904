//! One dispatch and combine with everything that a graph freezes: a handle, and memory for inputs and outputs. The experts
//! are a copy of the received rows.

use crate::cases::{Case, Mode};
use crate::cuda;
use crate::memory::{Arena, Array};
use crate::ranks::{ok, Buffer};
use deepep::capi::*;
use std::cell::Cell;
use std::ffi::c_void;

pub struct Lane<'a> {
    case: &'a Case,
    rank: usize,
    arena: &'a Arena,
    pub handle: *mut deep_ep_handle_t,
    received: Cell<usize>,
    x: Array,
    ids: Array,
    weights: Array,
    tokens: Array,
    given: Array,
    landing: Vec<Array>,
    sums: Array,
    local_experts: usize,
    slab_rows: usize,
    /// Of all slabs.
    rows: usize,
}

fn ranks_own(buffer: Buffer) -> usize {
    let mut count = 0;
    ok(unsafe { deep_ep_buffer_local_experts(buffer.0, std::ptr::null_mut(), 0, &mut count) });
    count
}

impl<'a> Lane<'a> {
    pub fn new(case: &'a Case, rank: usize, buffer: Buffer, arena: &'a Arena) -> Lane<'a> {
        let mut handle = std::ptr::null_mut();
        ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
        let local_experts = ranks_own(buffer);
        let (slabs, slab_rows) = case.slabs(rank);
        let rows = slabs * slab_rows;
        let row = case.hidden * case.rows.given_bytes();
        let k = if case.by_expert { 1 } else { case.topk };
        let landing = [
            rows * row,
            rows * k * 4,
            rows * k * 4,
            rows * 8,
            case.ranks * 4,
            local_experts * 4,
            16,
            if case.slotted { local_experts * case.ranks * 8 } else { (local_experts + 1) * 8 },
        ];
        Lane {
            case,
            rank,
            arena,
            handle,
            received: Cell::new(0),
            x: arena.array(case.tokens * row),
            ids: arena.array(case.tokens * case.topk * 8),
            weights: arena.array(case.tokens * case.topk * 4),
            tokens: arena.array(16),
            given: arena.array(rows * row),
            landing: landing.iter().map(|&bytes| arena.array(bytes)).collect(),
            sums: arena.array(case.tokens * row),
            local_experts,
            slab_rows,
            rows,
        }
    }

    fn row_bytes(&self) -> usize {
        self.case.hidden * self.case.rows.given_bytes()
    }

    /// Inputs of one run, and poison where it will write.
    pub fn load(&self, round: usize) {
        let inputs = self.case.inputs(self.rank, round);
        let weights: Vec<u8> = inputs.weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let ids: Vec<u8> = inputs.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        for (array, bytes) in [
            (&self.x, &inputs.x),
            (&self.ids, &ids),
            (&self.weights, &weights),
            (&self.tokens, &(inputs.tokens as i32).to_le_bytes().to_vec()),
        ] {
            self.arena.write_at(array.address(), bytes);
        }
        for array in self.landing.iter().chain([&self.sums]) {
            self.arena.write_at(array.address(), &vec![crate::memory::POISON; array.bytes()]);
        }
    }

    /// In two halves where the case says so. The call says where the rows will lie.
    pub fn dispatch(&self, stream: *mut c_void) {
        if self.case.split {
            self.dispatch_send(stream);
            ok(self.dispatch_recv(stream));
        } else {
            ok(self.dispatch_whole(stream));
        }
    }

    pub fn dispatch_whole(&self, stream: *mut c_void) -> deep_ep_status_t {
        let (request, mut out) = (self.request(), self.out());
        let status = unsafe { deep_ep_handle_dispatch(self.handle, &request, &mut out, stream) };
        self.note(status, &out)
    }

    pub fn dispatch_send(&self, stream: *mut c_void) {
        ok(self.send_status(stream));
    }

    pub fn send_status(&self, stream: *mut c_void) -> deep_ep_status_t {
        let request = self.request();
        unsafe { deep_ep_handle_dispatch_send(self.handle, &request, stream) }
    }

    pub fn dispatch_recv(&self, stream: *mut c_void) -> deep_ep_status_t {
        let mut out = self.out();
        let status = unsafe { deep_ep_handle_dispatch_recv(self.handle, &mut out, stream) };
        self.note(status, &out)
    }

    fn note(&self, status: deep_ep_status_t, out: &deep_ep_dispatch_out_t) -> deep_ep_status_t {
        if status == deep_ep_status_t::DEEP_EP_SUCCESS {
            self.received.set(out.x.data as usize);
        }
        status
    }

    fn request(&self) -> deep_ep_dispatch_in_t {
        let case = self.case;
        let mut request: deep_ep_dispatch_in_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_dispatch_in_init(&mut request, size_of::<deep_ep_dispatch_in_t>()) });
        request.num_tokens = case.tokens as i64;
        request.num_tokens_device = self.tokens.pointer();
        request.hidden = case.hidden as i64;
        request.x.data = self.x.pointer();
        request.x.dtype = case.rows.given();
        request.x.rows = case.tokens as i64;
        request.topk_idx = self.ids.pointer::<c_void>();
        request.topk_idx_dtype = deep_ep_dtype_t::DEEP_EP_INT64 as u32;
        request.topk_weights = self.weights.pointer();
        request
    }

    /// Side data always goes to caller memory, rows only in that mode.
    fn out(&self) -> deep_ep_dispatch_out_t {
        let mut out: deep_ep_dispatch_out_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_dispatch_out_init(&mut out, size_of::<deep_ep_dispatch_out_t>()) });
        if self.case.mode == Mode::Caller {
            out.x.data = self.landing[0].pointer();
            out.x.rows = self.slab_rows as i64;
        }
        out.topk_idx = self.landing[1].pointer();
        out.topk_weights = self.landing[2].pointer();
        out.row_source = self.landing[3].pointer();
        out.rank_counts = self.landing[4].pointer();
        out.expert_counts = self.landing[5].pointer();
        out.true_rows = self.landing[6].pointer();
        match (self.case.by_expert, self.case.slotted) {
            (true, false) => out.expert_offsets = self.landing[7].pointer(),
            (true, true) => out.source_ranges = self.landing[7].pointer(),
            _ => {}
        }
        out
    }

    /// Experts and combine, of the rows of the newest dispatch.
    pub fn combine(&self, stream: *mut c_void) {
        ok(self.combine_status(stream));
    }

    /// Two combines of one dispatch. The second gives back other rows, in the same window if there is only one, as soon as
    /// this rank has the sums of the first; those are kept.
    pub fn combine_and_overwrite(&self, stream: *mut c_void) {
        ok(self.combine_from(self.received.get(), stream));
        self.copy(self.given.address(), self.sums.address(), self.sums.bytes(), stream);
        ok(self.combine_from(self.landing[0].address(), stream));
        self.copy(self.sums.address(), self.given.address(), self.sums.bytes(), stream);
    }

    pub fn combine_status(&self, stream: *mut c_void) -> deep_ep_status_t {
        self.combine_from(self.received.get(), stream)
    }

    fn combine_from(&self, rows: usize, stream: *mut c_void) -> deep_ep_status_t {
        let input = self.giving(rows, stream);
        if self.case.split {
            return match unsafe { deep_ep_handle_combine_send(self.handle, &input, stream) } {
                deep_ep_status_t::DEEP_EP_SUCCESS => self.combine_recv(stream),
                refused => refused,
            };
        }
        unsafe { deep_ep_handle_combine(self.handle, &input, &self.summing(), stream) }
    }

    /// The first half alone.
    pub fn combine_send(&self, stream: *mut c_void) {
        let input = self.giving(self.received.get(), stream);
        ok(unsafe { deep_ep_handle_combine_send(self.handle, &input, stream) });
    }

    pub fn combine_recv(&self, stream: *mut c_void) -> deep_ep_status_t {
        unsafe { deep_ep_handle_combine_recv(self.handle, &self.summing(), stream) }
    }

    /// What comes back, a copy of `rows`.
    fn giving(&self, rows: usize, stream: *mut c_void) -> deep_ep_combine_in_t {
        let case = self.case;
        let mut input: deep_ep_combine_in_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_combine_in_init(&mut input, size_of::<deep_ep_combine_in_t>()) });
        input.hidden = case.hidden as i64;
        input.x.dtype = case.combine.given();
        input.x.data = self.given.pointer();
        input.x.rows = self.slab_rows as i64;
        if case.mode == Mode::InPlace {
            ok(unsafe { deep_ep_handle_combine_input(self.handle, &mut input.x, stream) });
        }
        self.copy(input.x.data as usize, rows, self.rows * self.row_bytes(), stream);
        if case.by_expert {
            input.flags |= DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
        }
        input
    }

    fn summing(&self) -> deep_ep_combine_out_t {
        let mut output: deep_ep_combine_out_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_combine_out_init(&mut output, size_of::<deep_ep_combine_out_t>()) });
        output.x.data = self.sums.pointer();
        output.x.rows = self.case.tokens as i64;
        output
    }

    pub fn release(&self, stream: *mut c_void) {
        ok(unsafe { deep_ep_handle_release(self.handle, stream) });
    }

    pub fn claim(&self, stream: *mut c_void) {
        let mut rows = unsafe { std::mem::zeroed::<deep_ep_combine_in_t>() }.x;
        rows.dtype = self.case.combine.given();
        ok(unsafe { deep_ep_handle_combine_input(self.handle, &mut rows, stream) });
    }

    pub fn pair(&self, stream: *mut c_void) {
        self.dispatch(stream);
        self.combine(stream);
    }

    fn copy(&self, to: usize, from: usize, bytes: usize, stream: *mut c_void) {
        if stream.is_null() {
            return unsafe { (to as *mut u8).copy_from(from as *const u8, bytes) };
        }
        cuda::copy(to, from, bytes, stream);
    }

    /// Whether a run has left the sums alone and no rows.
    pub fn is_untouched(&self) -> bool {
        self.has_no_sums() && self.arena.read(&self.landing[6]) == [0; 16]
    }

    pub fn has_no_sums(&self) -> bool {
        self.arena.read(&self.sums).iter().all(|&byte| byte == crate::memory::POISON)
    }

    /// The counts that the host is told, or its refusal.
    pub fn counts(&self) -> Result<Vec<i64>, deep_ep_status_t> {
        let (mut counts, mut rows) = (vec![-1i64; self.local_experts], -1i64);
        let status = unsafe { deep_ep_handle_wait_counts(self.handle, counts.as_mut_ptr(), &mut rows, 2000) };
        counts.push(rows);
        match status {
            deep_ep_status_t::DEEP_EP_SUCCESS => Ok(counts),
            refused => Err(refused),
        }
    }

    /// At most so many tokens in the next run.
    pub fn limit(&self, round: usize, tokens: usize) {
        let tokens = self.case.inputs(self.rank, round).tokens.min(tokens);
        self.arena.write_at(self.tokens.address(), &(tokens as i32).to_le_bytes());
    }

    /// An id that is none, in a row that is there.
    pub fn spoil(&self) {
        self.arena.write_at(self.tokens.address(), &1i32.to_le_bytes());
        self.arena.write_at(self.ids.address(), &(self.case.experts as i64 + 5).to_le_bytes());
    }

    /// Everything that the last run has written, and the counts.
    pub fn look(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let counts = self.counts().unwrap();
        let counts = (format!("{name} counts"), counts.iter().flat_map(|n| n.to_le_bytes()).collect());
        [vec![counts], self.written(name)].concat()
    }

    pub fn written(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let parts = [
            "rows",
            "ids",
            "weights",
            "source",
            "rank counts",
            "expert counts",
            "true rows",
            "offsets or ranges",
        ];
        let mut all = Vec::new();
        for (part, array) in parts.iter().zip(&self.landing) {
            all.push((format!("{name} {part}"), self.arena.read(array)));
        }
        all.push((format!("{name} sums"), self.arena.read(&self.sums)));
        all
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        unsafe { deep_ep_handle_destroy(self.handle) };
    }
}
