//! What a failed or impaired operation leaves behind.

use super::words::{Operation, Phase};
use crate::error::{Error, Status};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub status: Status,
    pub operation: Option<Operation>,
    pub phase: Option<Phase>,
    pub rank: u32,
    /// Ranks that did not come, ascending; or the one that aborted or runs something else.
    pub missing: Vec<u32>,
    pub epoch: u64,
    pub expected: u64,
    pub seen: u64,
    pub row: i64,
    pub value: i64,
    pub waited_ms: u32,
    /// What happened, for people.
    pub detail: String,
}

impl Report {
    pub fn nothing(rank: u32) -> Report {
        Report {
            status: Status::DEEP_EP_SUCCESS,
            operation: None,
            phase: None,
            rank,
            missing: Vec::new(),
            epoch: 0,
            expected: 0,
            seen: 0,
            row: -1,
            value: -1,
            waited_ms: 0,
            detail: String::new(),
        }
    }

    pub fn error(&self) -> Error {
        Error::about(self.status, self.missing.clone(), self.sentence())
    }

    fn sentence(&self) -> String {
        let operation = self.operation.map_or("operation", Operation::name);
        format!("rank {}, {operation} {}: {}", self.rank, self.epoch, self.detail)
    }
}
