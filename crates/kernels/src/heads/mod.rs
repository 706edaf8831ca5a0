//! What becomes of projected queries, keys and values before attention: bias, head norm, rotation
//! ([`crate::rope`]), and the store of keys and values. One thread does all of that with a head.

#[cfg(test)]
mod test;

use crate::kv_store::KvPool;
use crate::norm::norm_in_place;
use crate::rope::Angles;
use crate::spread::spread;
use device::{Cpu, Disjoint};

/// Rows of projected heads, `[rows, heads · head_dim]`, changed in place.
pub struct Projected<'a> {
    /// The rows.
    pub x: &'a mut [f32],
    /// What is added to each of them, `[heads · head_dim]`.
    pub bias: Option<&'a [f32]>,
    /// The weights of each head's norm, `[head_dim]`.
    pub norm: Option<&'a [f32]>,
}

impl Projected<'_> {
    /// No heads.
    pub fn none() -> Projected<'static> {
        Projected { x: &mut [], bias: None, norm: None }
    }
}

/// What the heads of a launch share.
pub struct Finish<'a> {
    /// Rows.
    pub rows: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Of head norms.
    pub eps: f32,
    /// The rows' angles.
    pub angles: &'a Angles,
}

/// Where keys and values go: row `r` to `slots[r]`.
pub struct Store<'a> {
    /// The pool.
    pub pool: &'a mut KvPool,
    /// Its layer.
    pub layer: usize,
    /// A slot a row. Of rows with the same slot the last one stays.
    pub slots: &'a [u32],
}

impl Finish<'_> {
    /// Finishes queries, keys and values; values are neither normed nor rotated. Without `store`
    /// keys and values stay where they are and nowhere else.
    ///
    /// # Panics
    /// When the shapes do not match, or a slot lies outside the pool.
    pub fn run(
        &self,
        cpu: &Cpu,
        q: Projected<'_>,
        k: Projected<'_>,
        v: Projected<'_>,
        store: Option<Store<'_>>,
    ) {
        assert_eq!(k.x.len(), v.x.len(), "keys and values have one shape");
        let elements = q.x.len() + k.x.len() + v.x.len();
        let [q, k, v] = [q, k, v].map(|projected| Heads::new(projected, self));
        let store = store.map(|Store { pool, layer, slots }| {
            assert_eq!(slots.len(), self.rows, "a slot a row");
            assert_eq!(
                (pool.kv_heads, pool.head_dim),
                (k.count, self.head_dim),
                "the pool's heads"
            );
            (pool.writer(layer, slots), slots)
        });
        spread(cpu, k.count + q.count, elements, &|part| {
            for row in 0..self.rows {
                // SAFETY: a head belongs to one part.
                unsafe {
                    if let Some(head) = part.checked_sub(k.count) {
                        q.turn(row, head, self);
                        continue;
                    }
                    let (key, value) = (k.turn(row, part, self), v.plain(row, part));
                    if let Some((writer, slots)) = &store {
                        writer.put(part, slots[row], key, value);
                    }
                }
            }
        });
    }
}

/// [`Projected`] while threads change it.
struct Heads<'a> {
    x: Disjoint<'a, f32>,
    count: usize,
    dim: usize,
    bias: Option<&'a [f32]>,
    norm: Option<&'a [f32]>,
}

impl<'a> Heads<'a> {
    fn new(Projected { x, bias, norm }: Projected<'a>, shape: &Finish<'_>) -> Heads<'a> {
        let (rows, dim, len) = (shape.rows, shape.head_dim, x.len());
        let count = len.checked_div(rows * dim).unwrap_or(0);
        assert_eq!(count * rows * dim, len, "{len} elements are not {rows} rows of heads of {dim}");
        assert!(bias.is_none_or(|bias| bias.len() == count * dim), "a bias for {count} heads");
        assert!(norm.is_none_or(|norm| norm.len() == dim), "a norm for heads of {dim}");
        Heads { x: Disjoint::new(x), count, dim, bias, norm }
    }

    /// A head with its bias.
    ///
    /// # Safety
    /// No other thread has the head meanwhile.
    #[allow(clippy::mut_from_ref)] // as of the slices it is made of; see the obligation above
    unsafe fn plain(&self, row: usize, head: usize) -> &mut [f32] {
        let at = (row * self.count + head) * self.dim;
        // SAFETY: as the caller promises.
        let x = unsafe { self.x.slice(at..at + self.dim) };
        if let Some(bias) = self.bias {
            x.iter_mut().zip(&bias[head * self.dim..]).for_each(|(x, b)| *x += b);
        }
        x
    }

    /// A head with its bias, normed and rotated.
    ///
    /// # Safety
    /// No other thread has the head meanwhile.
    #[allow(clippy::mut_from_ref)] // as of the slices it is made of; see the obligation above
    unsafe fn turn(&self, row: usize, head: usize, shape: &Finish<'_>) -> &mut [f32] {
        // SAFETY: as the caller promises.
        let x = unsafe { self.plain(row, head) };
        if let Some(norm) = self.norm {
            norm_in_place(x, norm, shape.eps);
        }
        shape.angles.rotate(row, x);
        x
    }
}
