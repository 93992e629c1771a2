//! temp
use super::Term;
use std::fmt;
use std::time::Duration;
#[allow(missing_docs)]
#[derive(Clone, Debug)]
pub struct Advert {
    pub fence: Duration,
    pub term: Option<Term>,
    pub identity: String,
}
impl Advert {
    #[allow(missing_docs)]
    pub fn parse(s: &str) -> Option<Self> {
        let mut it = s.strip_prefix("retsu-collector F=")?.split(' ');
        let ms: u64 = it.next()?.strip_suffix("ms")?.parse().ok()?;
        let mut term = None;
        let mut rest = it.next().unwrap_or("");
        if let Some(t) = rest.strip_prefix("T=") {
            let (a, b) = t.split_once('/')?;
            term = Some(Term { timeline: a.parse().ok()?, number: b.parse().ok()? });
            rest = it.next().unwrap_or("");
        }
        Some(Self { fence: Duration::from_millis(ms), term, identity: rest.to_owned() })
    }
}
impl fmt::Display for Advert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "retsu-collector F={}ms ", self.fence.as_millis())?;
        if let Some(t) = self.term {
            write!(f, "T={t} ")?;
        }
        f.write_str(&self.identity)
    }
}
