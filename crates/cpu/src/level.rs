/// The instructions that kernels may use. Results differ between levels in the last bits, never within one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL; VNNI and BF16 are asked for apart, where they are used.
    Avx512,
}

impl Level {
    /// The best that this machine has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has = |wanted: &[bool]| wanted.iter().all(|present| *present);
            if has(&[
                is_x86_feature_detected!("avx512f"),
                is_x86_feature_detected!("avx512bw"),
                is_x86_feature_detected!("avx512dq"),
                is_x86_feature_detected!("avx512vl"),
            ]) {
                return Self::Avx512;
            }
            if has(&[
                is_x86_feature_detected!("avx2"),
                is_x86_feature_detected!("fma"),
                is_x86_feature_detected!("f16c"),
            ]) {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// Every level this machine can run, for tests.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512]
            .into_iter()
            .filter(|level| *level <= Self::detect())
            .collect()
    }
}
