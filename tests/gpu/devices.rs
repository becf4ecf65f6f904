//! Which GPU a rank is on. Ranks go round all GPUs that there are, or the first of them as many as
//! DEEPEP_GPU_TESTS_DEVICES says.

use crate::cuda;

pub const VARIABLE: &str = "DEEPEP_GPU_TESTS_DEVICES";

pub fn count() -> usize {
    let all = cuda::device_count().max(1);
    std::env::var(VARIABLE).map_or(all, |text| text.parse::<usize>().unwrap().clamp(1, all))
}

pub fn of(rank: usize) -> i32 {
    (rank % count()) as i32
}
