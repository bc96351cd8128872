//! The built-in model with keys and values in every precision, against the same on the CPU in f32.

use super::parity::compare;
use anyhow::{Context, Result, bail};
use octavo::{Device, Llm, Options};
use octavo_backend::WeightFormat;
use octavo_backend::choice::likeliest;
use octavo_engine::{Flow, Request};
use octavo_types::KvDtype;

/// How far logits may be from those in f32, as a share of the typical one. Products round their inputs to bf16; what
/// eight bits of keys and values lose comes on top.
const BOUNDS: [(KvDtype, f32); 5] = [
    (KvDtype::F32, 0.01),
    (KvDtype::Bf16, 0.01),
    (KvDtype::F16, 0.01),
    (KvDtype::Int8, 0.02),
    (KvDtype::Fp8, 0.06),
];
/// Where a continuation leaves that of the CPU, the CPU may not like its own token better than by so many bounds.
const TIE: f32 = 4.0;
const GENERATED: u32 = 48;
/// Tokens of the long prompt.
const LONG: usize = 700;
const PROMPTS: [&str; 3] = ["The `Vec` type is", "A `String` is made of", "fn main() {\n    let mut"];
const TEXT: &str = include_str!("../../assets/quality-text.md");

pub(super) fn run(device: Device) -> Result<()> {
    let mut cpu = load(&Options {
        device: Device::Cpu,
        weights: WeightFormat::F32,
        kv_dtype: KvDtype::F32,
        ..Options::default()
    })?;
    let mut prompts: Vec<Vec<u32>> =
        PROMPTS.iter().map(|text| cpu.encode_prompt(text)).collect::<Result<_, _>>()?;
    let mut long = cpu.encode_prompt(TEXT)?;
    long.truncate(LONG);
    prompts.push(long);
    let expected = Said::by(&mut cpu, &prompts)?;
    let mut failed = Vec::new();
    for (dtype, bound) in BOUNDS {
        let options =
            Options { device, kv_dtype: dtype, kernel_cache: super::kernel_cache(), ..Options::default() };
        let mut llm = load(&options)?;
        let found = Said::by(&mut llm, &prompts)?;
        let (off, same) = compare(&found.logits, &expected.logits);
        let common = found.common(&expected);
        let worst = found.worst_parting(&expected, &prompts, &mut cpu)?;
        println!(
            "keys and values in {}: logits off by {:.2} % (bound {:.0} %), the likeliest token the same in {:.0} % of rows, \
             {common} of {} greedy tokens before they part, there at most {:.2} % apart",
            dtype.name(),
            100.0 * off,
            100.0 * bound,
            100.0 * same,
            GENERATED as usize * prompts.len(),
            100.0 * worst,
        );
        if off.is_nan() || off > bound || worst > TIE * bound {
            failed.push(dtype.name());
        }
    }
    if !failed.is_empty() {
        bail!("not as on the CPU: keys and values in {}", failed.join(", "));
    }
    Ok(())
}

fn load(options: &Options) -> Result<Llm> {
    Ok(Llm::load(options, &mut |_| {})?)
}

/// What a model says about the prompts.
struct Said {
    /// Of every token of every prompt.
    logits: Vec<Vec<f32>>,
    /// The likeliest continuations.
    tokens: Vec<Vec<u32>>,
}

impl Said {
    fn by(llm: &mut Llm, prompts: &[Vec<u32>]) -> Result<Self> {
        let mut logits = Vec::new();
        for prompt in prompts {
            llm.engine().score(prompt.clone(), &mut |_, row| logits.push(row.to_vec()))?;
        }
        let requests = prompts.iter().map(|prompt| Request::new(prompt.clone(), GENERATED)).collect();
        let outputs = llm.engine().generate(requests, &mut |_, _| Flow::Continue)?;
        let mut tokens = Vec::new();
        for mut output in outputs {
            if let Some(failure) = output.failure {
                bail!("{failure}");
            }
            tokens.push(output.choices.swap_remove(0).tokens);
        }
        Ok(Self { logits, tokens })
    }

    /// Tokens of all continuations before they part.
    fn common(&self, other: &Self) -> usize {
        self.tokens.iter().zip(&other.tokens).map(|(a, b)| equal(a, b)).sum()
    }

    /// How much likelier the CPU finds its own token where a continuation parts, as a share of its typical logit; the
    /// most of all.
    fn worst_parting(&self, cpus: &Self, prompts: &[Vec<u32>], cpu: &mut Llm) -> Result<f32> {
        let mut worst: f32 = 0.0;
        for ((own, cpus), prompt) in self.tokens.iter().zip(&cpus.tokens).zip(prompts) {
            let at = equal(own, cpus);
            let Some(&token) = own.get(at) else { continue };
            let known = [prompt, &cpus[..at]].concat();
            let mut last = Vec::new();
            cpu.engine().score(known, &mut |_, row| last = row.to_vec())?;
            let typical = (last.iter().map(|x| x * x).sum::<f32>() / last.len() as f32).sqrt();
            let most = likeliest(&last).context("the CPU computed no numbers")?;
            worst = worst.max((last[most as usize] - last[token as usize]) / typical);
        }
        Ok(worst)
    }
}

/// How many tokens two continuations begin with alike.
fn equal(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_hold_for_the_cpus_own_precisions() {
        run(Device::Cpu).unwrap();
    }
}
