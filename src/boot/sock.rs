//! The few socket calls the rendezvous needs, all of them non-blocking under a deadline.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// An address in the form the kernel takes.
#[derive(Clone)]
pub(super) struct SockAddr {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl SockAddr {
    fn zeroed() -> Self {
        // SAFETY: sockaddr_storage is plain data for which zero is a value.
        SockAddr { storage: unsafe { std::mem::zeroed() }, len: 0 }
    }

    fn fill<T>(value: T) -> Self {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        let mut address = Self::zeroed();
        // SAFETY: T fits, as asserted, and sockaddr_storage is aligned for every socket address.
        unsafe { std::ptr::from_mut(&mut address.storage).cast::<T>().write(value) };
        address.len = size_of::<T>() as libc::socklen_t;
        address
    }

    pub fn tcp(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::fill(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Self::fill(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    /// A Unix socket at a path or, abstract, under a name. Callers have checked that it fits.
    pub fn unix(name: &[u8], is_abstract: bool) -> Self {
        let mut path = [0 as libc::c_char; 108];
        let start = usize::from(is_abstract);
        for (to, from) in path[start..107].iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        let mut address =
            Self::fill(libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: path });
        // An abstract name ends with the length, a path with a zero.
        address.len = (size_of::<libc::sa_family_t>() + name.len().min(106) + 1) as libc::socklen_t;
        address
    }

    /// The abstract socket that stands for 16 bytes drawn by this library.
    pub fn hidden(bytes: &[u8; 16]) -> Self {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self::unix(format!("deepep-{hex}").as_bytes(), true)
    }

    pub fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        (std::ptr::from_ref(&self.storage).cast(), self.len)
    }

    fn family(&self) -> libc::c_int {
        libc::c_int::from(self.storage.ss_family)
    }
}

/// A non-blocking socket that no child process inherits.
pub(super) fn socket(family: libc::c_int, kind: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; the result is ours if it is not negative.
    unsafe {
        let fd = libc::socket(family, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

pub(super) fn bind(fd: &OwnedFd, address: &SockAddr) -> Result<()> {
    let (pointer, len) = address.parts();
    // SAFETY: pointer and length describe a live address.
    check(unsafe { libc::bind(fd.as_raw_fd(), pointer, len) })
}

pub(super) fn listen(address: &SockAddr) -> Result<OwnedFd> {
    let fd = socket(address.family(), libc::SOCK_STREAM)?;
    if address.family() != libc::AF_UNIX {
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    }
    bind(&fd, address)?;
    // SAFETY: no memory is involved. The kernel cuts the backlog to what it allows.
    check(unsafe { libc::listen(fd.as_raw_fd(), 4096) })?;
    Ok(fd)
}

/// The next waiting connection; None if there is none.
pub(super) fn accept(listener: &OwnedFd) -> Result<Option<Conn>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: null address pointers are allowed; the result is ours if it is not negative.
    let fd =
        unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    if fd < 0 {
        let error = Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Err(error),
            _ => Ok(None), // nobody there, or gone again
        };
    }
    // SAFETY: as above.
    Ok(Some(Conn::new(unsafe { OwnedFd::from_raw_fd(fd) })))
}

pub(super) fn connect(address: &SockAddr, until: Instant) -> Result<Conn> {
    let fd = socket(address.family(), libc::SOCK_STREAM)?;
    let (pointer, len) = address.parts();
    // SAFETY: pointer and length describe a live address.
    if let Err(error) = check(unsafe { libc::connect(fd.as_raw_fd(), pointer, len) }) {
        if error.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(error);
        }
        wait(&fd, libc::POLLOUT, until)?;
        let mut failure: libc::c_int = 0;
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the pointers are to live locals of the stated size.
        check(unsafe {
            let value = std::ptr::from_mut(&mut failure).cast();
            libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, value, &mut size)
        })?;
        if failure != 0 {
            return Err(Error::from_raw_os_error(failure));
        }
    }
    if address.family() != libc::AF_UNIX && connected_to_itself(&fd) {
        return Err(Error::from_raw_os_error(libc::ECONNREFUSED));
    }
    Ok(Conn::new(fd))
}

/// A connect to a local port where nobody listens can be given that very port as its own and meet itself; kept
/// open, it would hold the port against rank 0.
fn connected_to_itself(fd: &OwnedFd) -> bool {
    let name =
        |get: unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int| {
            let mut bytes = [0u8; 128];
            let mut len = bytes.len() as libc::socklen_t;
            // SAFETY: the buffer is live, as long as stated, and only compared as bytes.
            let done = unsafe { get(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), &mut len) };
            (done == 0).then_some(bytes)
        };
    let own = name(libc::getsockname);
    own.is_some() && own == name(libc::getpeername)
}

fn set_option(fd: &OwnedFd, level: libc::c_int, option: libc::c_int) -> Result<()> {
    let on: libc::c_int = 1;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is a live int of the stated size.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(&on).cast(), size) })
}

pub(super) fn check(result: libc::c_int) -> Result<()> {
    if result < 0 {
        return Err(Error::last_os_error());
    }
    Ok(())
}

/// Waits until one of the descriptors is ready or the time is over, whichever is first.
pub(super) fn poll(fds: &mut [libc::pollfd], until: Instant) -> Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let millis = left.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
    // SAFETY: the slice is live and as long as stated.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) }) {
        Err(error) if error.kind() == ErrorKind::Interrupted => {
            fds.iter_mut().for_each(|fd| fd.revents = 0);
            Ok(())
        }
        other => other,
    }
}

pub(super) fn watch(fd: &impl AsRawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

fn wait(fd: &OwnedFd, events: libc::c_short, until: Instant) -> Result<()> {
    loop {
        let mut fds = [watch(fd, events)];
        poll(&mut fds, until)?;
        if fds[0].revents != 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

/// A stream connection with what has come in and is not used yet.
pub(super) struct Conn {
    fd: OwnedFd,
    pub input: Vec<u8>,
}

impl Conn {
    fn new(fd: OwnedFd) -> Self {
        let _ = set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY); // no matter where it is not TCP
        Conn { fd, input: Vec::new() }
    }

    /// Takes in what has arrived, up to `limit` unused bytes in all. False if nothing had; an error when the
    /// other side has closed or sends too much.
    pub fn fill(&mut self, limit: usize) -> Result<bool> {
        let room = limit.saturating_sub(self.input.len()).min(1 << 16);
        if room == 0 {
            return Err(Error::new(ErrorKind::InvalidData, "it sends more than a rank would"));
        }
        let start = self.input.len();
        self.input.resize(start + room, 0);
        // SAFETY: the buffer has `room` bytes from `start` on.
        let got = unsafe {
            let to = self.input.as_mut_ptr().add(start).cast();
            libc::recv(self.fd.as_raw_fd(), to, room, libc::MSG_DONTWAIT)
        };
        self.input.truncate(start + got.max(0) as usize);
        match got {
            1.. => Ok(true),
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
            _ => {
                let error = Error::last_os_error();
                let empty = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                if empty {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Waits until something has come in.
    pub fn wait_fill(&mut self, limit: usize, until: Instant) -> Result<()> {
        while !self.fill(limit)? {
            wait(&self.fd, libc::POLLIN, until)?;
        }
        Ok(())
    }

    pub fn send_all(&self, mut bytes: &[u8], until: Instant) -> Result<()> {
        while !bytes.is_empty() {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the buffer is live and as long as stated.
            let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
            if sent >= 0 {
                bytes = &bytes[sent as usize..];
                continue;
            }
            let error = Error::last_os_error();
            match error.kind() {
                ErrorKind::WouldBlock => wait(&self.fd, libc::POLLOUT, until)?,
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsRawFd for Conn {
    fn as_raw_fd(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }
}

pub(super) fn soon(time: Duration, deadline: Instant) -> Instant {
    deadline.min(Instant::now() + time)
}

/// One datagram with descriptors attached; None if nothing is there.
pub(super) fn receive_with_fds(
    socket: BorrowedFd<'_>,
    body: &mut [u8],
    most: usize,
) -> Result<Option<(usize, Vec<OwnedFd>)>> {
    let size = size_of::<libc::c_int>();
    // SAFETY: arithmetic only.
    let space = unsafe { libc::CMSG_SPACE((most * size) as u32) } as usize;
    let mut control = vec![0u64; space.div_ceil(8)]; // u64 for the alignment of cmsghdr
    let mut part = libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: body.len() };
    // SAFETY: msghdr is plain data for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = space as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points at live buffers of the stated sizes.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    if got < 0 {
        let error = Error::last_os_error();
        let empty = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        return if empty { Ok(None) } else { Err(error) };
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control buffer with well-formed headers; each descriptor in it is new and
    // ours from here on, whoever sent it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                fds.extend((0..bytes / size).map(|i| OwnedFd::from_raw_fd(data.add(i).read_unaligned())));
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(Some((got as usize, fds)))
}

/// Sends one datagram with descriptors attached; an error of kind WouldBlock asks to try again.
pub(super) fn send_with_fds(
    socket: BorrowedFd<'_>,
    to: &SockAddr,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let size = std::mem::size_of_val(fds);
    // SAFETY: arithmetic only.
    let space = unsafe { libc::CMSG_SPACE(size as u32) } as usize;
    let mut control = vec![0u64; space.div_ceil(8)];
    let mut part = libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() };
    let (name, name_len) = to.parts();
    // SAFETY: msghdr is plain data for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = name.cast_mut().cast();
    message.msg_namelen = name_len;
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = space as _;
        // SAFETY: the control buffer has room for one header and all descriptors, by CMSG_SPACE.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size as u32) as _;
            let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the header points at live buffers of the stated sizes; the kernel only reads them.
    let sent =
        unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent >= 0 {
        return Ok(());
    }
    let error = Error::last_os_error();
    Err(match error.raw_os_error() {
        // Full queues, and too many descriptors under way: both pass when the peers take theirs.
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ETOOMANYREFS | libc::EINTR) => ErrorKind::WouldBlock.into(),
        _ => error,
    })
}
