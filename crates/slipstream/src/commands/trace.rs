//! `slipstream trace`: one answer, and a timeline of the lanes that made it.

use crate::args::TraceArgs;
use crate::failure::Failure;
use crate::render;
use crate::session::{Session, uninterrupted};
use device::{Device, Threads, check};
use model::chat::Message;
use std::fs::File;
use std::io::{BufWriter, Write};

pub(crate) fn run(args: TraceArgs) -> Result<(), Failure> {
    let out = |error| Failure::input(format!("--out {}: {error}", args.out.display()));
    let file = File::create(&args.out).map_err(out)?;
    let device = Threads::recording(args.entries);
    let mut session = Session::open_on(&device, &args.model)?;
    let prompt = session.encode_chat(&[Message::new("user", &args.prompt)])?;
    let request = session.request(prompt, &args.sampling, args.sampling.sampling());
    let output = session.run(request, &mut |_| Ok(()))?;
    // The step behind the last one is still in flight.
    while !session.engine.is_idle() {
        session.engine.turn()?;
    }
    let trace = device.recorder().expect("the device was asked to record").trace();
    let mut file = BufWriter::new(file);
    trace.write_json(&mut file).map_err(out)?;
    file.flush().map_err(out)?;
    println!("{}", output.text);
    eprintln!("{}", render::stats_line(&output.stats, output.reason));
    let (kept, dropped) = (trace.len(), trace.dropped());
    let races = check(&trace);
    let found = races.len();
    let path = args.out.display();
    eprintln!("{path}: {kept} entries ({dropped} older ones dropped), {found} unordered accesses");
    races.iter().for_each(|race| eprintln!("{race}"));
    uninterrupted(output.reason)?;
    if races.is_empty() { Ok(()) } else { Err(Failure::Unordered) }
}
