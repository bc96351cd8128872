//! The library from end to end: the same tokens, and the same bits, alone, in a crowd and from the cache.

use anyhow::{Result, bail, ensure};
use octavo::{Device, Llm, Loading, Options};
use octavo_engine::{Flow, Outputs, Request, SamplingParams};
use octavo_types::Tokens;

const TEXTS: [&str; 6] = [
    "The `Vec` type is",
    "What does `HashMap::entry` do?",
    "fn main() {",
    "A `String` is made of bytes, and",
    "Errors are returned as",
    "The borrow checker",
];
const GENERATED: u32 = 40;

pub(super) fn run(device: Device) -> Result<()> {
    let options = Options {
        device,
        deterministic: true,
        max_batch: 2 * TEXTS.len() as u32,
        max_len: Some(Tokens(1024)),
        kernel_cache: super::kernel_cache(),
        ..Options::default()
    };
    let mut steps = 0;
    let mut llm = Llm::load(&options, &mut |at| {
        if let Loading::WarmUp { done, .. } = at {
            steps = done;
        }
    })?;
    println!("{}: loaded, {steps} steps run to warm up", llm.device());
    let mut prompts: Vec<Vec<u32>> =
        TEXTS.iter().map(|text| llm.encode_prompt(text)).collect::<Result<_, _>>()?;
    // Longer than a page, so that there is something to find in the cache.
    let beginning = prompts.concat();
    prompts.iter_mut().for_each(|prompt| prompt.splice(0..0, beginning.iter().copied()).for_each(drop));
    for (logprobs, what) in [(None, "chosen on the device"), (Some(0), "with logprobs")] {
        let requests: Vec<Request> = prompts.iter().map(|prompt| request(prompt, logprobs)).collect();
        let mut alone = Vec::new();
        for request in &requests {
            llm.engine().drop_prefixes();
            alone.push(only(generate(&mut llm, vec![request.clone()])?));
        }
        ensure!(
            alone.iter().all(|output| output.usage.cached_tokens == Tokens::ZERO),
            "nothing is cached yet"
        );
        llm.engine().drop_prefixes();
        // Each beside another of its own, and all the others.
        let crowd = generate(&mut llm, [requests.clone(), requests.clone()].concat())?;
        let mut cached = Vec::new();
        for request in &requests {
            cached.push(only(generate(&mut llm, vec![request.clone()])?));
        }
        ensure!(cached.iter().all(|output| output.usage.cached_tokens > Tokens::ZERO), "found in the cache");
        let mut differ = 0;
        for (at, alone) in alone.iter().enumerate() {
            let others = [&crowd[at], &crowd[at + requests.len()], &cached[at]];
            differ += others.iter().filter(|other| other.choices != alone.choices).count();
        }
        let count: usize = alone.iter().map(|output| output.choices[0].tokens.len()).sum();
        println!(
            "{what}: {count} tokens alone, in a crowd of {} and from the cache: {differ} of {} outputs differ",
            2 * requests.len(),
            3 * requests.len()
        );
        if differ > 0 {
            bail!("tokens {what} depend on what else runs");
        }
    }
    Ok(())
}

/// The likeliest tokens, and where logprobs are asked for their bits, too.
fn request(prompt: &[u32], logprobs: Option<u8>) -> Request {
    let sampling = SamplingParams { temperature: 0.0, logprobs, ..SamplingParams::default() };
    Request { sampling, ..Request::new(prompt.to_vec(), GENERATED) }
}

fn generate(llm: &mut Llm, requests: Vec<Request>) -> Result<Vec<Outputs>> {
    let outputs = llm.engine().generate(requests, &mut |_, _| Flow::Continue)?;
    match outputs.iter().find_map(|output| output.failure.as_ref()) {
        Some(failure) => bail!("{failure}"),
        None => Ok(outputs),
    }
}

fn only(mut outputs: Vec<Outputs>) -> Outputs {
    outputs.swap_remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_says_the_same_alone_in_a_crowd_and_from_the_cache() {
        run(Device::Cpu).unwrap();
    }
}
