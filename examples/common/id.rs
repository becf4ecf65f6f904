//! A unique id as text, to hand it to another process.

use super::Outcome;
use deepep::capi::deep_ep_unique_id_t;

pub fn id_to_text(id: &deep_ep_unique_id_t) -> String {
    id.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn id_from_text(text: &str) -> Outcome<deep_ep_unique_id_t> {
    let bad = || format!("a unique id is {} hexadecimal digits, not '{text}'", 2 * 128);
    let bytes: Vec<u8> = (0..text.len() / 2)
        .map(|i| text.get(2 * i..2 * i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect::<Option<_>>()
        .ok_or_else(bad)?;
    Ok(deep_ep_unique_id_t { bytes: bytes.try_into().map_err(|_| bad())? })
}
