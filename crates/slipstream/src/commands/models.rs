//! `slipstream models`: what is known, where it lies, how large, under which licence.

use crate::failure::Failure;
use crate::render;
use fetch::{Known, Role, Sources};
use std::io::{Write, stdout};

pub(crate) fn run() -> Result<(), Failure> {
    let sources = Sources::from_env()?;
    let mut out = stdout().lock();
    for known in sources.known {
        describe(&mut out, known, &sources)?;
    }
    writeln!(
        out,
        "Any Hugging Face repository (org/name), GGUF file or folder works too: --model, --draft.\n\
         Cache: {}",
        sources.cache.display()
    )?;
    Ok(())
}

fn describe(out: &mut impl Write, known: &Known, sources: &Sources) -> std::io::Result<()> {
    let role = match known.role {
        Role::Target => "target".to_owned(),
        Role::Drafter { target } => format!("drafter for {target}"),
    };
    writeln!(out, "{}", known.name)?;
    writeln!(out, "  what     {} ({role})", known.about)?;
    writeln!(
        out,
        "  size     {} ({} bytes)",
        render::size(known.size()),
        render::grouped(known.size())
    )?;
    writeln!(out, "  licence  {}", known.licence)?;
    match sources.find(known) {
        Some(path) => writeln!(out, "  at       {}", path.display())?,
        None => writeln!(out, "  at       not here: slipstream pull {}", known.name)?,
    }
    writeln!(out)
}
