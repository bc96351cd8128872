use crate::{Buf, Matrix, Pool};

/// `out[i] = table[tokens[i]] * scale`.
pub fn embed(pool: &Pool, table: &Matrix, tokens: &[u32], scale: f32, out: &mut Buf) {
    let cols = table.cols();
    assert_eq!((out.rows(), out.cols()), (tokens.len(), cols), "the output's shape");
    if cols == 0 {
        return;
    }
    pool.run_chunks(out.data_mut(), cols, &|i, out| {
        table.row(tokens[i] as usize, out);
        for value in out {
            *value *= scale;
        }
    });
}

/// The rows of `x` listed in `rows`, in that order.
pub fn pick_rows(x: &Buf, rows: &[u32], out: &mut Buf) {
    assert_eq!((out.rows(), out.cols()), (rows.len(), x.cols()), "the output's shape");
    for (i, row) in rows.iter().enumerate() {
        out.row_mut(i).copy_from_slice(x.row(*row as usize));
    }
}
