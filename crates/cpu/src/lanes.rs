//! Plain loops, compiled once a level.

/// Defines `$name(level, ...)`: the function `$body`, which must be `#[inline(always)]`, compiled for each level.
///
/// The body is written in lanes: arrays that the compiler turns into vectors, added up in an order that is written
/// down. As it may not reorder floating-point operations, and `mul_add` rounds once everywhere, all levels give the
/// same bits.
macro_rules! by_level {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        $vis fn $name(level: $crate::Level, $($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
                fn avx512($($arg: $type),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                assert!(level <= $crate::Level::detect(), "this machine does not have {level:?}");
                match level {
                    // SAFETY: the level was asserted above.
                    $crate::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: the level was asserted above.
                    $crate::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::Level::Portable => {}
                }
            }
            let _ = level;
            $body($($arg),*)
        }
    };
}

pub(crate) use by_level;
