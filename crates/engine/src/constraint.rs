use crate::sampler::TokenMask;
#[derive(Clone, Debug)]
pub enum Constraint {}
impl Constraint {
    pub fn mask(&mut self) -> Result<&TokenMask, crate::sampler::NothingAllowed> { match *self {} }
    pub fn accept(&mut self, _token: u32) -> Result<(), crate::sampler::NothingAllowed> { match *self {} }
    pub fn must_end(&mut self) -> bool { match *self {} }
}
