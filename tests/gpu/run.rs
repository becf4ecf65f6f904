//! One case on one backend: every rank on a thread of its own, and what each has in its outputs afterwards.

use crate::cases::{Case, Mode};
use crate::memory::{Arena, Array, Where};
use crate::observe;
use crate::ranks::{ok, report, Buffer, World};
use crate::rng::Rng;
use deepep::capi::*;

/// Name and bytes of each output, in the order of the calls.
pub type Outputs = Vec<(String, Vec<u8>)>;

pub fn run(case: &Case, place: Where) -> Vec<Outputs> {
    let world = World::create(place, case.ranks).unwrap_or_else(|(_, text)| panic!("{text}"));
    let map = case.map();
    let buffers = world.buffers(&case.config(place), map.as_deref());
    std::thread::scope(|scope| {
        let ranks: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(rank, buffer)| scope.spawn(move || Rank::new(case, place, rank, buffer).rounds()))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// One rank of several processes.
pub fn run_rank(case: &Case, place: Where, rank: usize, buffer: Buffer) -> Outputs {
    Rank::new(case, place, rank, buffer).rounds()
}

struct Rank<'a> {
    case: &'a Case,
    rank: usize,
    buffer: Buffer,
    handle: *mut deep_ep_handle_t,
    arena: Arena,
    local_experts: usize,
    /// Slabs of the outputs, and rows that each has room for: one for all but the slotted layouts.
    slabs: usize,
    slab_rows: usize,
    outputs: Outputs,
}

/// The caller's memory of one dispatch.
struct Received {
    out: deep_ep_dispatch_out_t,
    arrays: Vec<(&'static str, Array)>,
}

impl<'a> Rank<'a> {
    fn new(case: &'a Case, place: Where, rank: usize, buffer: Buffer) -> Rank<'a> {
        let mut handle = std::ptr::null_mut();
        ok(unsafe { deep_ep_handle_create(buffer.0, &mut handle) });
        let mut local_experts = 0;
        ok(unsafe { deep_ep_buffer_local_experts(buffer.0, std::ptr::null_mut(), 0, &mut local_experts) });
        let (slabs, slab_rows) = case.slabs(rank);
        let arena = if case.classic_memory { Arena::classic(place, rank) } else { Arena::new(place, rank) };
        let outputs = Vec::new();
        Rank { case, rank, buffer, handle, arena, local_experts, slabs, slab_rows, outputs }
    }

    fn rounds(mut self) -> Outputs {
        for round in 0..self.case.rounds {
            self.round(round, false);
            if round % 4 == 3 {
                self.round(round, true);
            }
        }
        ok(unsafe { deep_ep_handle_destroy(self.handle) });
        self.arena.wait();
        ok(unsafe { deep_ep_buffer_barrier(self.buffer.0, self.arena.stream()) });
        self.arena.wait();
        let report = report(self.buffer);
        assert_eq!(report.status, deep_ep_status_t::DEEP_EP_SUCCESS, "after the last round");
        self.outputs.push(observe::counted(self.buffer, self.case.ranks));
        if self.case.trace {
            let dispatched = ["dispatch counts", "dispatch rows", "dispatch data", "dispatch receive"];
            let combined = ["combine rows", "combine data", "combine sums"];
            // Slotted layouts exchange no counts.
            let dispatched = &dispatched[usize::from(self.case.slotted)..];
            let most = dispatched.iter().chain(&combined).map(|&name| (name, 4)).collect::<Vec<_>>();
            observe::phases(self.case, &most, self.buffer);
        }
        ok(unsafe { deep_ep_buffer_destroy(self.buffer.0) });
        self.outputs
    }

    fn keep(&mut self, name: String, bytes: Vec<u8>) {
        self.outputs.push((name, bytes));
    }

    fn round(&mut self, round: usize, cached: bool) {
        let received = self.dispatch(round, cached);
        let name = if cached { format!("{round} cached") } else { format!("{round}") };
        self.look(&name, &received);
        self.note_report(&name);
        // Some dispatches are only released.
        if round % 5 == 4 && !cached || self.case.dispatches {
            ok(unsafe { deep_ep_handle_release(self.handle, self.arena.stream()) });
        } else {
            self.combine(round, &name);
        }
        self.arena.wait();
    }

    /// What the buffer has to report: bad ids, overflow.
    fn note_report(&mut self, name: &str) {
        let r = report(self.buffer);
        let numbers = [r.status as i64, r.operation.into(), r.row, r.value, r.epoch as i64];
        self.keep(format!("{name} report"), numbers.iter().flat_map(|n| n.to_le_bytes()).collect());
    }

    fn dispatch(&mut self, round: usize, cached: bool) -> Received {
        let case = self.case;
        let inputs = case.inputs(self.rank, round);
        let mut request: deep_ep_dispatch_in_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_dispatch_in_init(&mut request, size_of::<deep_ep_dispatch_in_t>()) });
        let mut rng = Rng::new(round as u64 + 77 * self.rank as u64);
        // A cached dispatch sends other rows by the same routing.
        let x = if cached { case.rows.random(&mut rng, inputs.tokens * case.hidden) } else { inputs.x };
        let mut late = Vec::new();
        let mut given = |content: &[u8]| {
            let array = self.arena.filled(content);
            if !case.late {
                return array;
            }
            let poisoned = self.arena.array(content.len());
            late.push((poisoned.address(), array));
            poisoned
        };
        let (x, scales) = (given(&x), given(&inputs.scales));
        let ids = given(&case.id_bytes(&inputs.ids));
        let weights: Vec<u8> = inputs.weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let weights = given(&weights);
        let on_device = given(&(inputs.tokens as i32).to_le_bytes());
        request.num_tokens = inputs.tokens as i64;
        // Now and then the number is read from memory.
        if round % 3 == 1 && !cached {
            request.num_tokens_device = on_device.pointer();
        }
        request.hidden = case.hidden as i64;
        request.x.data = x.pointer();
        request.x.dtype = case.rows.given();
        request.x.rows = inputs.tokens as i64;
        if case.given_scale_bytes() > 0 {
            request.x_scales.data = scales.pointer();
            request.x_scales.dtype = case.scales.dtype();
            request.x_scales.block = match case.scales {
                crate::cases::Scales::Opaque(bytes) => bytes as i32,
                _ => 0,
            };
        }
        if case.rows.is_cast() {
            request.wire_dtype = deep_ep_dtype_t::DEEP_EP_FP8_E4M3 as u32;
            request.wire_scale_dtype = case.scales.dtype();
        }
        if cached {
            request.flags = DEEP_EP_DISPATCH_CACHED;
        } else {
            request.topk_idx = ids.pointer::<std::ffi::c_void>();
            request.topk_idx_dtype =
                (if case.int64 { deep_ep_dtype_t::DEEP_EP_INT64 } else { deep_ep_dtype_t::DEEP_EP_INT32 })
                    as u32;
        }
        // Without weights all are 1, or the earlier ones.
        if round % 4 != 2 && (!cached || round % 8 == 3) {
            request.topk_weights = weights.pointer();
        }
        let mut received = self.landing();
        let (handle, stream) = (self.handle, self.arena.stream());
        if case.late {
            self.dawdle();
            self.arena.close_gate();
            late.iter().for_each(|(to, from)| self.arena.copy(*to, from.address(), from.bytes()));
        }
        unsafe {
            if case.split {
                ok(deep_ep_handle_dispatch_send(handle, &request, stream));
                ok(deep_ep_handle_dispatch_recv(handle, &mut received.out, stream));
            } else {
                ok(deep_ep_handle_dispatch(handle, &request, &mut received.out, stream));
            }
        }
        if case.late {
            self.dawdle();
            self.arena.open_gate();
        }
        self.arena.wait();
        received
    }

    /// Up to two milliseconds, another time in every run.
    fn dawdle(&self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let micros = Rng::new(u64::from(now.subsec_nanos()) + 7 * self.rank as u64).below(2000);
        std::thread::sleep(std::time::Duration::from_micros(micros as u64));
    }

    fn landing(&self) -> Received {
        let case = self.case;
        let mut out: deep_ep_dispatch_out_t = unsafe { std::mem::zeroed() };
        ok(unsafe { deep_ep_dispatch_out_init(&mut out, size_of::<deep_ep_dispatch_out_t>()) });
        let mut arrays = Vec::new();
        let columns = case.scales.row_bytes(case.hidden).div_ceil(4);
        if case.column_major {
            out.scales.col_stride = 4 * self.slab_rows.next_multiple_of(4) as i64;
        }
        let rows = self.slabs * self.slab_rows;
        if case.mode == Mode::Caller {
            let k = if case.by_expert { 1 } else { case.topk };
            let row_bytes = case.hidden * case.rows.sent_bytes();
            let mut take = |name, bytes, element: usize| {
                let skew = if case.skewed { element } else { 0 };
                let array = self.arena.array(bytes + skew);
                let address = (array.address() + skew) as *mut std::ffi::c_void;
                arrays.push((name, array));
                address
            };
            out.x.data = take("x", rows * row_bytes, 0);
            out.x.rows = self.slab_rows as i64;
            if columns > 0 {
                let slab = columns * 4 * self.slab_rows.next_multiple_of(4);
                out.scales.data = take("scales", self.slabs * slab, 4);
            }
            out.topk_idx = take("ids", rows * k * 4, 4).cast();
            out.topk_weights = take("weights", rows * k * 4, 12).cast();
            out.row_source = take("source", rows * 8, 8).cast();
            out.rank_counts = take("rank counts", case.ranks * 4, 4).cast();
            out.expert_counts = take("expert counts", self.local_experts * 4, 4).cast();
            out.true_rows = take("true rows", 16, 8).cast();
            match (case.by_expert, case.slotted) {
                (true, false) => {
                    out.expert_offsets = take("expert offsets", (self.local_experts + 1) * 8, 8).cast()
                }
                (true, true) => {
                    out.source_ranges = take("source ranges", self.local_experts * case.ranks * 8, 4).cast()
                }
                _ => {}
            }
        }
        Received { out, arrays }
    }

    /// Keeps everything that a dispatch has written.
    fn look(&mut self, name: &str, received: &Received) {
        let (case, out) = (self.case, &received.out);
        for (part, array) in &received.arrays {
            let bytes = self.arena.read(array);
            self.keep(format!("{name} {part}"), bytes);
        }
        let (mut counts, mut rows) = (vec![-1i64; self.local_experts], -1i64);
        ok(unsafe { deep_ep_handle_wait_counts(self.handle, counts.as_mut_ptr(), &mut rows, 2000) });
        counts.push(rows);
        self.keep(format!("{name} counts"), counts.iter().flat_map(|n| n.to_le_bytes()).collect());
        let k = if case.by_expert { 1 } else { case.topk };
        assert_eq!(out.x.rows as usize, self.slab_rows, "capacity");
        let all = self.slabs * self.slab_rows;
        let when = |wanted: bool, bytes: usize| if wanted { bytes } else { 0 };
        let (offsets, ranges) = (case.by_expert && !case.slotted, case.by_expert && case.slotted);
        for (part, address, bytes) in [
            ("ids", out.topk_idx as usize, all * k * 4),
            ("weights", out.topk_weights as usize, all * k * 4),
            ("source", out.row_source as usize, all * 8),
            ("rank counts", out.rank_counts as usize, case.ranks * 4),
            ("expert counts", out.expert_counts as usize, self.local_experts * 4),
            ("true rows", out.true_rows as usize, 16),
            ("offsets", out.expert_offsets as usize, when(offsets, (self.local_experts + 1) * 8)),
            ("ranges", out.source_ranges as usize, when(ranges, self.local_experts * case.ranks * 8)),
        ] {
            let bytes = self.arena.read_at(address, bytes);
            self.keep(format!("{name} {part} at the end"), bytes);
        }
        let present = match (case.slotted, case.by_expert) {
            (false, _) => vec![rows as usize],
            (true, false) => self.numbers(out.rank_counts as usize, case.ranks),
            (true, true) => self.numbers(out.expert_counts as usize, self.local_experts),
        };
        for (slab, &rows) in present.iter().enumerate() {
            self.look_at_slab(&format!("{name} slab {slab}"), out, slab, rows);
        }
    }

    fn numbers(&self, address: usize, count: usize) -> Vec<usize> {
        let bytes = self.arena.read_at(address, count * 4);
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()) as usize).collect()
    }

    /// Keeps the rows that are present in a slab, and their scales.
    fn look_at_slab(&mut self, name: &str, out: &deep_ep_dispatch_out_t, slab: usize, rows: usize) {
        let case = self.case;
        let row_bytes = case.hidden * case.rows.sent_bytes();
        assert_eq!(out.x.row_stride as usize, row_bytes);
        let from = out.x.data as usize + slab * out.x.slot_stride as usize;
        let x = self.arena.read_at(from, rows * row_bytes);
        self.keep(format!("{name} rows"), x);
        if case.scales == crate::cases::Scales::None {
            return;
        }
        let columns = case.scales.row_bytes(case.hidden).div_ceil(4);
        let (row, col) = (out.scales.row_stride as usize, out.scales.col_stride as usize);
        let from = out.scales.data as usize + slab * out.scales.slot_stride as usize;
        let end = rows.saturating_sub(1) * row + (columns - 1) * col + 4;
        let all = self.arena.read_at(from, if rows > 0 { end } else { 0 });
        let mut scales = Vec::new();
        for (i, column) in (0..rows).flat_map(|i| (0..columns).map(move |c| (i, c))) {
            let at = i * row + column * col;
            let left = case.scales.row_bytes(case.hidden) - column * 4;
            scales.extend_from_slice(&all[at..at + left.min(4)]);
        }
        self.keep(format!("{name} scales"), scales);
        self.keep(format!("{name} scale strides"), format!("{row} {col}").into_bytes());
    }

    fn combine(&mut self, round: usize, name: &str) {
        let (case, rows) = (self.case, self.slabs * self.slab_rows);
        let tokens = case.inputs(self.rank, round).tokens;
        let mut rng = Rng::new(5000 + round as u64 * 64 + self.rank as u64);
        let row_bytes = case.hidden * case.combine.given_bytes();
        let mut input: deep_ep_combine_in_t = unsafe { std::mem::zeroed() };
        let mut output: deep_ep_combine_out_t = unsafe { std::mem::zeroed() };
        unsafe {
            ok(deep_ep_combine_in_init(&mut input, size_of::<deep_ep_combine_in_t>()));
            ok(deep_ep_combine_out_init(&mut output, size_of::<deep_ep_combine_out_t>()));
        }
        let exact = case.by_expert && round % 4 >= 2;
        input.flags = if exact { DEEP_EP_COMBINE_EXACT } else { 0 };
        input.hidden = case.hidden as i64;
        input.x.dtype = case.combine.given();
        let given = case.combine.random(&mut rng, rows * case.hidden);
        let x = self.arena.filled(&given);
        if case.mode == Mode::InPlace {
            ok(unsafe { deep_ep_handle_combine_input(self.handle, &mut input.x, self.arena.stream()) });
            self.arena.wait(); // a barrier may be ahead of the memory
            self.arena.write_at(input.x.data as usize, &given);
        } else {
            input.x.data = x.pointer();
            input.x.rows = self.slab_rows as i64;
        }
        let floats = |rng: &mut Rng, count: usize| -> Vec<u8> {
            rng.floats(count).iter().flat_map(|f| f.to_le_bytes()).collect()
        };
        let per_row = if case.by_expert { 1 } else { case.topk };
        let row_weights = self.arena.filled(&floats(&mut rng, rows));
        let topk_weights = self.arena.filled(&floats(&mut rng, tokens * case.topk));
        let carried = self.arena.filled(&floats(&mut rng, rows * per_row));
        let weighting = round % 3;
        if case.by_expert && weighting == 1 {
            input.flags |= DEEP_EP_COMBINE_WEIGHTS_OF_DISPATCH;
        } else if weighting == 2 {
            input.row_weights = row_weights.pointer();
            if exact {
                input.topk_weights = topk_weights.pointer();
            }
        }
        let carries = round % 2 == 1;
        let sums = self.arena.array(case.tokens * row_bytes);
        let carried_sums = self.arena.array(case.tokens * case.topk * 4);
        let biases = [0, 1].map(|_| self.arena.filled(&case.combine.random(&mut rng, tokens * case.hidden)));
        if carries {
            input.carried_weights = carried.pointer();
            output.carried_weights = carried_sums.pointer();
        }
        output.x.data = sums.pointer();
        output.x.rows = tokens as i64;
        if round % 4 >= 1 {
            output.bias[0] = biases[0].pointer::<std::ffi::c_void>();
        }
        if round % 4 == 3 {
            output.bias[1] = biases[1].pointer::<std::ffi::c_void>();
        }
        let (handle, stream) = (self.handle, self.arena.stream());
        unsafe {
            if case.split {
                ok(deep_ep_handle_combine_send(handle, &input, stream));
                ok(deep_ep_handle_combine_recv(handle, &output, stream));
            } else {
                ok(deep_ep_handle_combine(handle, &input, &output, stream));
            }
        }
        self.arena.wait();
        let (sums, carried_sums) = (self.arena.read(&sums), self.arena.read(&carried_sums));
        self.keep(format!("{name} sums"), sums);
        self.keep(format!("{name} carried"), carried_sums);
    }
}
