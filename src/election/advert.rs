//! What the lock session tells others in its `application_name`.

use std::fmt;
use std::time::Duration;

use super::Term;
use super::bound::{MAX_FENCE, server_millis};
use super::status::number;

/// The longest `application_name` that PostgreSQL keeps, in bytes.
const MAX_LENGTH: usize = 63;

const PROGRAM: &str = "retsu-collector";

/// `retsu-collector F=3000ms T=1/731 pod-a`: the fence that a holder of the lock serves by, its term once it has
/// one, and who it is. Every role of the database can read it, and any session can write the like.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Advert {
    fence: Duration,
    term: Option<Term>,
    identity: String,
}

impl Advert {
    /// `fence` is rounded up to the millisecond. Of `identity`, what is no visible ASCII character is replaced by
    /// `?`, as PostgreSQL would do in its own way, and so is `=`, so that no identity reads as a term.
    #[must_use]
    pub fn new(fence: Duration, term: Option<Term>, identity: &str) -> Self {
        let visible = |c: char| if c.is_ascii_graphic() && c != '=' { c } else { '?' };
        let millis = u64::from(server_millis(fence).unsigned_abs());
        Self { fence: Duration::from_millis(millis), term, identity: identity.chars().map(visible).collect() }
    }

    /// Reads an `application_name`. `None` for any other than an advertisement, and for a fence that no
    /// configuration admits: nobody may keep a new leader waiting with that.
    #[must_use]
    pub fn parse(application_name: &str) -> Option<Self> {
        let rest = application_name.strip_prefix(PROGRAM)?.strip_prefix(" F=")?;
        let (millis, rest) = rest.split_once("ms")?;
        let fence = Duration::from_millis(number(millis).ok()?);
        if fence.is_zero() || fence > MAX_FENCE {
            return None;
        }
        let (term, rest) = match rest.strip_prefix(" T=") {
            Some(rest) => {
                let (term, rest) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
                (Some(term.parse().ok()?), rest)
            }
            None => (None, rest),
        };
        let identity = if rest.is_empty() { rest } else { rest.strip_prefix(' ')? };
        let advert = Self::new(fence, term, identity);
        (advert.identity == identity).then_some(advert)
    }

    /// How long after its last proof the holder may serve.
    #[must_use]
    pub const fn fence(&self) -> Duration {
        self.fence
    }

    /// The holder's term; `None` before it has one.
    #[must_use]
    pub const fn term(&self) -> Option<Term> {
        self.term
    }

    /// Who the holder is; the end of it, if the whole did not fit into `application_name`.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }
}

/// The `application_name`, at most 63 bytes: of a long identity the end, which tells the Pods of a workload apart.
impl fmt::Display for Advert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{PROGRAM} F={}ms", self.fence.as_millis());
        if let Some(term) = self.term {
            text += &format!(" T={term}");
        }
        if !self.identity.is_empty() {
            // The longest fence and term leave room for two bytes. It is ASCII, so no character is split.
            let room = MAX_LENGTH.saturating_sub(text.len() + 1);
            let cut = self.identity.len().saturating_sub(room);
            text += " ";
            text += self.identity.get(cut..).unwrap_or_default();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    const TERM: Term = Term { timeline: 1, number: 731 };

    #[test]
    fn says_fence_term_and_identity() {
        let seconds = Duration::from_secs(3);
        for (term, identity, text) in [
            (Some(TERM), "pod-a", "retsu-collector F=3000ms T=1/731 pod-a"),
            (None, "host/4711", "retsu-collector F=3000ms host/4711"),
            (Some(TERM), "", "retsu-collector F=3000ms T=1/731"),
            (None, "T=1/2", "retsu-collector F=3000ms T?1/2"),
            (None, "ünit\t1 x", "retsu-collector F=3000ms ?nit?1?x"),
        ] {
            assert_eq!(Advert::new(seconds, term, identity).to_string(), text);
        }
        let finer = Advert::new(Duration::from_micros(2_500_001), None, "");
        assert_eq!(finer.fence(), Duration::from_millis(2501), "never shorter than the fence itself");
    }

    #[test]
    fn everything_else_is_no_advertisement() {
        for text in [
            "",
            "retsu-collector",
            "psql",
            "retsu-collector F=ms",
            "retsu-collector F=-1ms",
            "retsu-collector F=+1ms x",
            "retsu-collector F=0ms x",
            "retsu-collector F=600001ms x",
            "retsu-collector F=18446744073709551616ms x",
            "retsu-collector F=3000 x",
            "retsu-collector F=3sms",
            "retsu-collector F=3000msx",
            "retsu-collector F=3000ms T=1 x",
            "retsu-collector F=3000ms T=1/ x",
            "retsu-collector F=3000ms T=4294967296/1 x",
            "retsu-collector F=3000ms T=1/2/3 x",
            "retsu-collector F=3000ms  x",
            "retsu-collector  F=3000ms x",
            "Retsu-collector F=3000ms x",
        ] {
            assert_eq!(Advert::parse(text), None, "{text}");
        }
        assert_eq!(Advert::parse("retsu-collector F=600000ms x").unwrap().fence(), MAX_FENCE);
    }

    #[test]
    fn of_the_long_names_of_a_workload_the_ends_are_told_apart() {
        let told = ["x2kqz", "7hwtb"].map(|suffix| {
            let pod = format!("retsu-retsu-collector-5d9c8b7f6d-{suffix}");
            Advert::new(Duration::from_secs(3), Some(TERM), &pod).to_string()
        });
        assert_eq!(
            told,
            ["x2kqz", "7hwtb"]
                .map(|suffix| { format!("retsu-collector F=3000ms T=1/731 tsu-collector-5d9c8b7f6d-{suffix}") })
        );
    }

    #[test]
    fn the_longest_fence_and_term_are_never_cut() {
        let term = Term { timeline: u32::MAX, number: u64::MAX };
        let text = Advert::new(MAX_FENCE, Some(term), &format!("{}yz", "x".repeat(99))).to_string();
        assert_eq!(text.len(), MAX_LENGTH);
        let parsed = Advert::parse(&text).unwrap();
        assert_eq!((parsed.fence(), parsed.term(), parsed.identity()), (MAX_FENCE, Some(term), "yz"));
    }

    proptest! {
        #[test]
        fn what_is_told_is_what_is_read_but_for_the_beginning_of_a_long_identity(
            nanos in 1_u64..600_000_000_000,
            term in prop::option::of((any::<u32>(), any::<u64>())),
            identity in ".{0,80}",
        ) {
            let term = term.map(|(timeline, number)| Term { timeline, number });
            let advert = Advert::new(Duration::from_nanos(nanos), term, &identity);
            let text = advert.to_string();
            prop_assert!(text.len() <= MAX_LENGTH && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            let parsed = Advert::parse(&text).unwrap();
            prop_assert!(parsed.fence() >= Duration::from_nanos(nanos));
            prop_assert_eq!((parsed.fence(), parsed.term()), (advert.fence(), term));
            prop_assert!(advert.identity().ends_with(parsed.identity()));
            prop_assert!(text.len() == MAX_LENGTH || parsed == advert);
            prop_assert_eq!(parsed.to_string(), text);
        }

        #[test]
        fn an_identity_that_somebody_else_has_cut_at_its_end_is_read_as_well(
            term in prop::option::of((any::<u32>(), any::<u64>())),
            identity in "[a-z0-9-]{1,80}",
            kept in 0_usize..80,
        ) {
            let term = term.map(|(timeline, number)| Term { timeline, number });
            let whole = Advert::new(MAX_FENCE, term, "").to_string();
            let kept = identity.get(..kept).unwrap_or(&identity);
            let parsed = Advert::parse(&format!("{whole} {kept}")).unwrap();
            prop_assert_eq!((parsed.fence(), parsed.term(), parsed.identity()), (MAX_FENCE, term, kept));
        }

        #[test]
        fn no_text_makes_the_parser_panic(head in "(retsu-collector F=)?[0-9]{0,3}(ms)?( T=)?", tail in ".{0,70}") {
            let _ = Advert::parse(&tail);
            if let Some(advert) = Advert::parse(&format!("{head}{tail}")) {
                prop_assert!(advert.fence() <= MAX_FENCE);
            }
        }
    }
}
