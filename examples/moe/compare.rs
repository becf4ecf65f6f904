//! The check that the demo ends with.

/// The first difference between two outputs, in words; none if every byte of both is the same.
pub fn difference(got: &[u8], want: &[u8], row_bytes: usize) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("the output has {} bytes, the one-rank run's {}", got.len(), want.len()));
    }
    let different = got.iter().zip(want).filter(|(a, b)| a != b).count();
    let at = got.iter().zip(want).position(|(a, b)| a != b)?;
    Some(format!(
        "{different} of {} bytes differ from the one-rank run, first at token {}, byte {} of its row: {:#04x}, not {:#04x}",
        got.len(),
        at / row_bytes,
        at % row_bytes,
        got[at],
        want[at]
    ))
}
