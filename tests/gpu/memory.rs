//! Memory on the host or on the device, behind one face.

use deepep::driver::{Device, Memory, Stream};
use std::cell::UnsafeCell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    Host,
    Device,
}

/// What outputs hold before they are written.
pub const POISON: u8 = 0xa5;

/// Where one rank's arrays lie, and its stream.
pub struct Arena {
    device: Option<(std::sync::Arc<Device>, Stream)>,
}

pub enum Array {
    Host(UnsafeCell<Vec<u128>>, usize),
    Device(Memory, usize),
}

impl Arena {
    pub fn new(place: Where) -> Arena {
        let device = (place == Where::Device).then(|| {
            let device = Device::open(0).unwrap();
            let stream = Stream::new(&device).unwrap();
            (device, stream)
        });
        Arena { device }
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
                let unit = Memory::granularity(device).unwrap();
                let rounded = (bytes.max(1) as u64).next_multiple_of(unit);
                Array::Device(Memory::allocate(device, rounded, &[device]).unwrap(), bytes)
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
            Array::Device(memory, _) => memory.address() as usize,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Array::Host(_, bytes) | Array::Device(_, bytes) => *bytes,
        }
    }

    pub fn pointer<T>(&self) -> *mut T {
        self.address() as *mut T
    }
}
