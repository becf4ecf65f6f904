//! Memory on the host or on the device, behind one face.

use crate::{cuda, devices};
use deepep::driver::{copy_on_device, Device, Memory, Pinned, Stream};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    Host,
    Device,
}

/// What outputs hold before they are written.
pub const POISON: u8 = 0xa5;

/// Where one rank's arrays lie, and its stream.
pub struct Arena {
    device: Option<(Arc<Device>, Stream)>,
    /// Memory for many arrays, one behind the other, and how much is taken: mapping memory for each takes its time, a
    /// sanitizer's above all.
    chunk: Mutex<Option<(Arc<Memory>, usize)>>,
    gate: Option<Pinned>,
    /// Times that the gate was closed.
    closed: AtomicU32,
    /// Memory from cuMemAlloc, of which arrays are parts; and how much is taken.
    classic: Option<cuda::Block>,
    taken: AtomicUsize,
}

const CHUNK_BYTES: usize = 32 << 20;

pub enum Array {
    Host(UnsafeCell<Vec<u128>>, usize),
    /// Of a chunk.
    Device(Arc<Memory>, usize, usize),
    /// Of memory that the arena keeps.
    Part(usize, usize),
}

impl Arena {
    /// On the rank's device.
    pub fn new(place: Where, rank: usize) -> Arena {
        let device = (place == Where::Device).then(|| {
            let device = Device::open(devices::of(rank)).unwrap();
            let stream = Stream::new(&device).unwrap();
            (device, stream)
        });
        let gate = device.as_ref().map(|(device, _)| Pinned::new(device, 8).unwrap());
        Arena {
            device,
            chunk: Mutex::default(),
            gate,
            closed: AtomicU32::new(0),
            classic: None,
            taken: AtomicUsize::new(0),
        }
    }

    /// Whose arrays come from cuMemAlloc, at addresses that no granule begins with.
    pub fn classic(place: Where, rank: usize) -> Arena {
        let arena = Arena::new(place, rank);
        let classic = arena.device.as_ref().map(|(device, _)| cuda::Block::allocate(device, 64 << 20));
        Arena { classic, ..arena }
    }

    fn part_of(&self, classic: &cuda::Block, bytes: usize) -> Array {
        let size = bytes.next_multiple_of(16);
        let at = self.taken.fetch_add(size, Ordering::Relaxed) + 16;
        assert!(at + size <= classic.bytes, "the case is too large for this memory");
        Array::Part(classic.address as usize + at, bytes)
    }

    /// A chunk with room for so many bytes, and where in it.
    fn room(&self, device: &Arc<Device>, bytes: usize) -> (Arc<Memory>, usize) {
        let mut chunk = self.chunk.lock().unwrap();
        if let Some((_, taken)) = chunk.as_mut().filter(|(memory, _)| Arc::strong_count(memory) == 1) {
            *taken = 0;
        }
        let fits = |(memory, taken): &(Arc<Memory>, usize)| taken + bytes <= memory.bytes() as usize;
        if !chunk.as_ref().is_some_and(fits) {
            let unit = Memory::granularity(device, None).unwrap();
            let size = (bytes.max(CHUNK_BYTES) as u64).next_multiple_of(unit);
            *chunk = Some((Arc::new(Memory::allocate(device, None, size, &[device]).unwrap()), 0));
        }
        let (memory, taken) = chunk.as_mut().unwrap();
        let start = *taken;
        *taken = (start + bytes).next_multiple_of(256);
        (memory.clone(), start)
    }

    pub fn stream(&self) -> *mut std::ffi::c_void {
        self.device.as_ref().map_or(std::ptr::null_mut(), |(_, stream)| stream.pointer() as *mut _)
    }

    /// Until everything that was enqueued has run.
    pub fn wait(&self) {
        if let Some((_, stream)) = &self.device {
            stream.wait().unwrap();
        }
    }

    /// What is enqueued from here on waits until the gate is opened. The host backend has no stream to hold up.
    pub fn close_gate(&self) {
        if let (Some((device, stream)), Some(gate)) = (&self.device, &self.gate) {
            let number = self.closed.fetch_add(1, Ordering::Relaxed) + 1;
            cuda::wait_for_word(device, stream.pointer() as *mut _, gate.address(), number);
        }
    }

    pub fn open_gate(&self) {
        if let Some(gate) = &self.gate {
            gate.words()[0].store(self.closed.load(Ordering::Relaxed).into(), Ordering::Release);
        }
    }

    /// Enqueues a copy.
    pub fn copy(&self, to: usize, from: usize, bytes: usize) {
        match &self.device {
            None => unsafe { (from as *const u8).copy_to(to as *mut u8, bytes) },
            Some((device, stream)) => unsafe {
                let _guard = device.enter().unwrap();
                copy_on_device(device, to as u64, from as u64, bytes as u64, stream.pointer()).unwrap();
            },
        }
    }

    /// A poisoned array.
    pub fn array(&self, bytes: usize) -> Array {
        let array = match &self.device {
            Some(_) if self.classic.is_some() => self.part_of(self.classic.as_ref().unwrap(), bytes),
            None => Array::Host(UnsafeCell::new(vec![0; bytes.div_ceil(16).max(1)]), bytes),
            Some((device, _)) => {
                let (memory, start) = self.room(device, bytes);
                Array::Device(memory, start, bytes)
            }
        };
        self.write_at(array.address(), &vec![POISON; bytes]);
        array
    }

    pub fn filled(&self, content: &[u8]) -> Array {
        let array = self.array(content.len());
        self.write_at(array.address(), content);
        array
    }

    pub fn write_at(&self, to: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match &self.device {
            None => unsafe { (to as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) },
            Some((_, stream)) => unsafe { stream.write(to as u64, bytes).unwrap() },
        }
    }

    pub fn read_at(&self, from: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        if bytes == 0 {
            return out;
        }
        match &self.device {
            None => unsafe { (from as *const u8).copy_to_nonoverlapping(out.as_mut_ptr(), bytes) },
            Some((_, stream)) => unsafe { stream.read(&mut out, from as u64).unwrap() },
        }
        out
    }

    pub fn read(&self, array: &Array) -> Vec<u8> {
        self.read_at(array.address(), array.bytes())
    }
}

impl Array {
    pub fn address(&self) -> usize {
        match self {
            Array::Host(words, _) => unsafe { (*words.get()).as_mut_ptr() as usize },
            Array::Device(memory, start, _) => memory.address() as usize + start,
            Array::Part(address, _) => *address,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Array::Host(_, bytes) | Array::Device(_, _, bytes) | Array::Part(_, bytes) => *bytes,
        }
    }

    pub fn pointer<T>(&self) -> *mut T {
        self.address() as *mut T
    }
}
