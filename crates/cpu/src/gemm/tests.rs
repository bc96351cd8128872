use super::*;
use octavo_backend::{TensorRef, WeightDtype, WeightFormat};

/// Products computed by both ways, where the machine has both.
#[test]
#[cfg(target_arch = "x86_64")]
fn dots_have_the_bits_of_two_multiply_adds() {
    let Some(dots) = Way::dots(Level::detect()) else { return };
    let pool = Pool::new(2.try_into().unwrap());
    let mut seed = 1_u64;
    let mut value = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 40) as f32 / 8_388_608.0 - 1.0) * ((seed >> 33) % 9) as f32
    };
    for (n, k, rows) in [(1, 1, 1), (33, 7, 3), (64, 130, 12), (100, 257, 29), (5, 2048, 2)] {
        let weights: Vec<u8> = (0..n * k).flat_map(|_| bf16::from_f32(value()).to_le_bytes()).collect();
        let weights = TensorRef::new(WeightDtype::Bf16, n, k, &weights).unwrap();
        let w = Matrix::pack(&[weights], WeightFormat::AsStored, &pool);
        let mut x = Buf::new(rows, k);
        x.data_mut().iter_mut().for_each(|x| *x = value());
        let mut out = [Buf::new(rows, n), Buf::new(rows, n)];
        multiply(dots, &pool, &w, &x, &mut out[0]);
        multiply(Way::sums::<bf16>(Level::Avx512), &pool, &w, &x, &mut out[1]);
        let [dots, sums] = out.map(|out| out.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        assert_eq!(dots, sums, "{rows} rows, {n}x{k}");
    }
}

/// What is packed for dot products, with everything that rounding treats apart, and rows that end within a vector.
#[test]
#[cfg(target_arch = "x86_64")]
fn pairs_are_packed_as_rounded() {
    let Some(dots) = Way::dots(Level::detect()) else { return };
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::MAX, -0.0, 1e-39, -1e-39, 1.2e-38, 1.0 + 1.0 / 256.0];
    for (rows, cols) in [(1, 1), (2, 9), (3, 31), (12, 32), (5, 33), (7, 79)] {
        let mut x = Buf::new(rows, cols);
        let values = (0..).map(|i| if i % 3 == 0 { odd[i / 3 % odd.len()] } else { i as f32 * -0.37 });
        x.data_mut().iter_mut().zip(values).for_each(|(x, value)| *x = value);
        let tile = rows / 2..rows;
        let mut packed = vec![u32::MAX; tile.len() * cols.div_ceil(PAIR)];
        (dots.pack)(&x, tile.clone(), &mut packed);
        for (i, word) in packed.into_iter().enumerate() {
            let (step, row) = (i / tile.len(), tile.start + i % tile.len());
            let at = |input| x.row(row).get(step * PAIR + input).map_or(0, |x| u32::from(rounded(*x)));
            assert_eq!(word, at(0) | at(1) << 16, "{rows}x{cols}, row {row}, step {step}");
        }
    }
}

#[test]
fn rounding_is_that_of_bf16_without_subnormals() {
    let values =
        [0.0, -0.0, 1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -3.1875, f32::MAX, f32::INFINITY, 1.2e-38];
    for value in values {
        assert_eq!(rounded(value), bf16::from_f32(value).to_bits(), "{value}");
    }
    assert!(bf16::from_bits(rounded(f32::NAN)).is_nan());
    assert!(bf16::from_bits(rounded(f32::from_bits(0x7f80_0001))).is_nan());
    assert_eq!((rounded(1e-39), rounded(-1e-39)), (0, 0x8000));
}
