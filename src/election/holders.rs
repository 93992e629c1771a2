//! temp
use super::{Term, advert::Advert};
use crate::clock::BootInstant;
use crate::config::LeaseSettings;
use std::time::Duration;
pub(super) struct Holders {
    own: Duration,
    ppm: u32,
    last: Option<Advert>,
}
impl Holders {
    pub(super) fn new(l: &LeaseSettings) -> Self {
        Self { own: l.fence, ppm: l.clock_drift_ppm, last: None }
    }
    pub(super) fn observe(&mut self, a: &Advert, _at: BootInstant) {
        self.last = Some(a.clone());
    }
    pub(super) fn opens(&self, g: BootInstant) -> BootInstant {
        let f = self.last.as_ref().map_or(self.own, |a| a.fence.max(self.own));
        g + f.mul_f64(1.0 + f64::from(self.ppm) / 1e6)
    }
    pub(super) fn last(&self) -> Option<Term> {
        self.last.as_ref().and_then(|a| a.term)
    }
}
