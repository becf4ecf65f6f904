//! The other ranks' side of the rendezvous.

use super::id::UniqueId;
use super::mac;
use super::sock::{self, Conn};
use super::wire::{self, Hello, Purpose, Seal, Table};
use crate::error::{Error, Result, Status};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// How long a listener may take to prove itself before this rank tries again.
const PROOF_TIME: Duration = Duration::from_secs(3);
/// How long after its deadline a rank still listens for the verdict: rank 0 knows who is missing.
const GRACE: Duration = Duration::from_secs(1);
const FIRST_NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(20);

/// Tries until rank 0 is there, and waits for its verdict.
pub(super) fn meet(id: &UniqueId, me: &Hello, deadline: Instant) -> Result<Table> {
    let mut nap = FIRST_NAP;
    loop {
        let reason = match introduce(id, me, deadline) {
            Ok((conn, seal)) => return verdict(conn, &seal, me, deadline),
            Err(reason) => reason,
        };
        if Instant::now() >= deadline {
            let text = format!("rank 0 did not come to {} before the deadline: {reason}", id.address());
            return Err(Error::about(Status::DEEP_EP_TIMEOUT, vec![0], text));
        }
        std::thread::sleep(nap.min(deadline.saturating_duration_since(Instant::now())));
        nap = (nap * 2).min(LONGEST_NAP);
    }
}

/// Whether somebody with this id already acts as rank 0: what it says about that, if so.
pub(super) fn ask_once(id: &UniqueId, me: &Hello, deadline: Instant) -> Option<Error> {
    let (conn, seal) = introduce(id, me, deadline).ok()?;
    verdict(conn, &seal, me, deadline).err()
}

/// Connects and exchanges proofs. What fails here may be a rank 0 that is not ready, or not rank 0 at all.
fn introduce(id: &UniqueId, me: &Hello, deadline: Instant) -> std::io::Result<(Conn, Seal)> {
    let until = sock::soon(PROOF_TIME, deadline.max(Instant::now() + Duration::from_millis(1)));
    let mut conn = sock::connect(&id.sock_addr(), until)?;
    while conn.input.len() < 16 {
        conn.wait_fill(16, until)?;
    }
    let server = std::array::from_fn(|i| conn.input[i]);
    conn.input.clear();
    let client = mac::random().map_err(std::io::Error::other)?;
    let seal = Seal { secret: id.secret(), server, client };
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    let hello = Hello { patience_ms: left.min(u32::MAX.into()) as u32, ..me.clone() };
    let mut message = client.to_vec();
    message.extend_from_slice(&seal.frame(Purpose::Hello, &hello.encode()));
    conn.send_all(&message, until)?;
    seal.receive(Purpose::Welcome, &mut conn, wire::VERDICT_LIMIT, until)?;
    Ok((conn, seal))
}

fn verdict(mut conn: Conn, seal: &Seal, me: &Hello, deadline: Instant) -> Result<Table> {
    let body = seal.receive(Purpose::Verdict, &mut conn, wire::VERDICT_LIMIT, deadline + GRACE);
    let body = body.map_err(|reason| match reason.kind() {
        ErrorKind::TimedOut => {
            let text = "rank 0 did not say in time whether all ranks came";
            Error::about(Status::DEEP_EP_TIMEOUT, vec![0], text)
        }
        _ => {
            let text = format!("rank 0 left while the group formed: {reason}");
            Error::about(Status::DEEP_EP_PEER_FAILED, vec![0], text)
        }
    })?;
    wire::decode_verdict(&body, me.num_ranks).unwrap_or_else(|| {
        let text = "rank 0 ended the rendezvous with a message that is none of this library's";
        Err(Error::about(Status::DEEP_EP_PEER_FAILED, vec![0], text))
    })
}
