//! How memory is held for steps in flight, and what it takes to show that the checks notice when
//! it is not.

/// How memory is held for steps in flight. Slipstream runs on [`Discipline::Sound`]; the others are
/// mutants that only tests ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Discipline {
    /// A block's slots are leased for whatever the steps before it add, and what a request leaves
    /// behind is held until the last step that mentions it has landed.
    #[default]
    Sound,
    /// Mutant: what a request leaves behind is given back at once.
    GiveBackEarly,
    /// Mutant: slots are leased for one block, as if no step before it were in flight.
    ReserveOneBlock,
}
