//! Memory on the host or on the device, behind one face.

use deepep::driver::{Device, Memory, Stream};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::Arc;

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
    chunk: RefCell<Option<Arc<Chunk>>>,
}

/// Device memory for many arrays, one behind the other: mapping memory for each takes its time, a sanitizer's above all.
struct Chunk {
    memory: Memory,
    used: Cell<usize>,
}

const CHUNK_BYTES: usize = 32 << 20;

pub enum Array {
    Host(UnsafeCell<Vec<u128>>, usize),
    Device(Arc<Chunk>, usize, usize),
}

impl Arena {
    pub fn new(place: Where) -> Arena {
        let device = (place == Where::Device).then(|| {
            let device = Device::open(0).unwrap();
            let stream = Stream::new(&device).unwrap();
            (device, stream)
        });
        Arena { device, chunk: RefCell::default() }
    }

    /// A chunk with room for so many bytes, and where in it.
    fn room(&self, device: &Arc<Device>, bytes: usize) -> (Arc<Chunk>, usize) {
        let mut chunk = self.chunk.borrow_mut();
        if let Some(unused) = chunk.as_mut().and_then(Arc::get_mut) {
            unused.used.set(0);
        }
        if !chunk.as_ref().is_some_and(|chunk| chunk.used.get() + bytes <= chunk.memory.bytes() as usize) {
            let unit = Memory::granularity(device).unwrap();
            let size = (bytes.max(CHUNK_BYTES) as u64).next_multiple_of(unit);
            let memory = Memory::allocate(device, size, &[device]).unwrap();
            *chunk = Some(Arc::new(Chunk { memory, used: Cell::new(0) }));
        }
        let chunk = chunk.clone().unwrap();
        let start = chunk.used.get();
        chunk.used.set((start + bytes).next_multiple_of(256));
        (chunk, start)
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

    /// A poisoned array.
    pub fn array(&self, bytes: usize) -> Array {
        let array = match &self.device {
            None => Array::Host(UnsafeCell::new(vec![0; bytes.div_ceil(16).max(1)]), bytes),
            Some((device, _)) => {
                let (chunk, start) = self.room(device, bytes);
                Array::Device(chunk, start, bytes)
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
            Array::Device(chunk, start, _) => chunk.memory.address() as usize + start,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Array::Host(_, bytes) | Array::Device(_, _, bytes) => *bytes,
        }
    }

    pub fn pointer<T>(&self) -> *mut T {
        self.address() as *mut T
    }
}
