use memmap2::MmapMut;

/// Zeroed bytes that start on a page, so on a cache line too. Memory is committed when it is first written, by
/// whoever writes it, in huge pages where the system has them: weights are read from end to end at every step, and
/// looking up the address of every 4 KiB would cost a tenth of that.
pub(crate) struct Aligned(MmapMut);

impl Aligned {
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let map = MmapMut::map_anon(bytes.max(1))
            .unwrap_or_else(|error| panic!("no memory for {bytes} bytes: {error}"));
        #[cfg(target_os = "linux")]
        // Refused on systems without huge pages; nothing depends on it.
        let _ = map.advise(memmap2::Advice::HugePage);
        Self(map)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl std::fmt::Debug for Aligned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aligned({} bytes)", self.0.len())
    }
}
