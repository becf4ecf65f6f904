//! What the process of a rank tells the one that started it: lines of JSON on its standard output. Behind the line of
//! `Done` come the bytes of its output rows.

use crate::common::Outcome;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};

#[derive(Serialize, Deserialize)]
pub enum Message {
    /// A batch has ended.
    Batch,
    Failed(String),
    Done(Report, usize),
}

/// What one rank did.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct Report {
    pub rank: usize,
    pub tokens: usize,
    pub batches: usize,
    pub dispatch: Traffic,
    pub combine: Traffic,
    pub dispatch_us: u64,
    pub experts_us: u64,
    pub combine_us: u64,
    /// Rows this rank's gate chose for each expert of the layer.
    pub chosen: Vec<u64>,
    /// The experts that live here.
    pub experts: Vec<ExpertReport>,
}

/// As the library's statistics count it.
#[derive(Serialize, Deserialize, Clone, Copy, Default)]
pub struct Traffic {
    pub rows_sent: u64,
    pub bytes_sent: u64,
    pub rows_received: u64,
    pub bytes_received: u64,
}

#[derive(Serialize, Deserialize, Clone, Default)]
pub struct ExpertReport {
    pub id: usize,
    /// Rows that came from each rank.
    pub from: Vec<u64>,
}

pub fn write(to: &mut impl Write, message: &Message, rows: &[u8]) -> Outcome<()> {
    let mut line = serde_json::to_string(message).map_err(|error| error.to_string())?;
    line.push('\n');
    let sent = to.write_all(line.as_bytes()).and_then(|()| to.write_all(rows)).and_then(|()| to.flush());
    sent.map_err(|error| format!("the starting process does not listen any more: {error}"))
}

/// The next message and the rows behind it; none at the end.
pub fn read(from: &mut impl BufRead) -> Outcome<Option<(Message, Vec<u8>)>> {
    let mut line = String::new();
    let bytes = from.read_line(&mut line).map_err(|error| error.to_string())?;
    if bytes == 0 || !line.ends_with('\n') {
        return Ok(None);
    }
    let message = serde_json::from_str(&line).map_err(|error| format!("not a message: {line}{error}"))?;
    let mut rows = Vec::new();
    if let Message::Done(_, size) = &message {
        from.take(*size as u64).read_to_end(&mut rows).map_err(|error| error.to_string())?;
        if rows.len() != *size {
            return Ok(None);
        }
    }
    Ok(Some((message, rows)))
}
