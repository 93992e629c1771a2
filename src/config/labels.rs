//! Kubernetes' rules for names, labels and selectors of labels. Its own clients can write a selector and not read one.

/// The longest name of a label or annotation, value of a label, or DNS label, in bytes.
const MAX_NAME: usize = 63;

/// The longest DNS subdomain, in bytes.
const MAX_SUBDOMAIN: usize = 253;

/// Whether `text` can be the key of a label or annotation: a name, with or without a DNS subdomain and a `/` before it.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

/// Whether `text` is a DNS label, such as the name of a namespace or container.
pub(crate) fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_NAME && is_part_of_a_subdomain(text)
}

/// Whether `text` is a DNS subdomain, such as the name of a Pod.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_part_of_a_subdomain)
}

/// The keys that a label selector looks at, one for each requirement; `None` when `text` is no selector of equality
/// and set-based requirements.
pub(crate) fn keys_of_selector(text: &str) -> Option<Vec<&str>> {
    let tokens = tokens(text);
    let (mut rest, mut keys) = (tokens.as_slice(), Vec::new());
    loop {
        let (key, after) = requirement(rest)?;
        keys.push(key);
        rest = match after {
            [] => return Some(keys),
            [Token::Comma, after @ ..] => after,
            _ => return None,
        };
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// `=`, `==` or `!=`
    Operator,
    Not,
    Open,
    Close,
    Comma,
}

/// Cuts a selector into tokens. A character that belongs to none becomes a part of a word, which no rule accepts.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start_matches(' '));
    while !rest.is_empty() {
        let token = [
            ("==", Token::Operator),
            ("!=", Token::Operator),
            ("=", Token::Operator),
            ("!", Token::Not),
            ("(", Token::Open),
            (")", Token::Close),
            (",", Token::Comma),
        ];
        let (token, after) =
            token.into_iter().find_map(|(text, token)| Some((token, rest.strip_prefix(text)?))).unwrap_or_else(|| {
                let (word, after) = rest.split_at(rest.find([' ', '=', '!', '(', ')', ',']).unwrap_or(rest.len()));
                (Token::Word(word), after)
            });
        tokens.push(token);
        rest = after.trim_start_matches(' ');
    }
    tokens
}

/// The key of the first requirement, and what comes after it.
fn requirement<'a, 't>(tokens: &'t [Token<'a>]) -> Option<(&'a str, &'t [Token<'a>])> {
    let (key, rest) = match tokens {
        [Token::Not, Token::Word(key), rest @ ..] => (key, rest),
        [Token::Word(key), Token::Word("in" | "notin"), Token::Open, rest @ ..] => {
            let end = rest.iter().position(|token| *token == Token::Close)?;
            let values = &rest[..end];
            let valid = !values.is_empty() && values.split(|token| *token == Token::Comma).all(is_value);
            valid.then_some((key, &rest[end + 1..]))?
        }
        [Token::Word(key), Token::Operator, value @ Token::Word(_), rest @ ..] if is_value(&[*value]) => (key, rest),
        // An operator with nothing after it compares with the empty value.
        [Token::Word(key), Token::Operator, rest @ ..] | [Token::Word(key), rest @ ..] => (key, rest),
        _ => return None,
    };
    is_qualified_name(key).then_some((key, rest))
}

fn is_value(tokens: &[Token<'_>]) -> bool {
    match tokens {
        [] => true,
        [Token::Word(value)] => is_name(value),
        _ => false,
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && begins_and_ends(text, |byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Only a whole subdomain has a limit of length, none of its parts.
fn is_part_of_a_subdomain(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    begins_and_ends(text, alphanumeric) && text.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
}

fn begins_and_ends(text: &str, with: impl Fn(u8) -> bool) -> bool {
    matches!((text.bytes().next(), text.bytes().last()), (Some(first), Some(last)) if with(first) && with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_name_of_63_bytes_behind_a_subdomain_of_253() {
        let (name, prefix) = ("n".repeat(63), format!("{}.io", "p".repeat(250)));
        for key in ["a", "A.b_c-9", "retsu.io/collector-role", &name, &format!("{prefix}/{name}"), "x--y.z/0"] {
            assert!(is_qualified_name(key), "{key}");
        }
        for key in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "-a",
            "a.",
            "_a",
            "a b",
            "ä",
            "Retsu.io/a",
            "retsu..io/a",
            ".io/a",
            "re_tsu/a",
            "-r/a",
            &"n".repeat(64),
            &format!("p{prefix}/n"),
        ] {
            assert!(!is_qualified_name(key), "{key}");
        }
    }

    #[test]
    fn names_of_pods_and_namespaces_are_those_of_dns() {
        assert!(is_dns_subdomain("retsu-collector-0.a") && !is_dns_label("retsu-collector-0.a"));
        assert!(is_dns_label(&"n".repeat(63)) && !is_dns_label(&"n".repeat(64)) && is_dns_subdomain(&"n".repeat(64)));
        for name in ["", "Retsu", "a/b", "a_b", "-a", "a-", "..", "a?b", "a%2f"] {
            assert!(!is_dns_subdomain(name) && !is_dns_label(name), "{name}");
        }
    }

    #[test]
    fn a_selector_of_equality_and_sets_is_taken_apart_into_its_keys() {
        let table: [(&str, &[&str]); 14] = [
            ("app=retsu", &["app"]),
            ("app==retsu", &["app"]),
            ("app!=retsu", &["app"]),
            (" app = retsu , tier != a ", &["app", "tier"]),
            (
                "app.kubernetes.io/name=retsu,app.kubernetes.io/instance=a",
                &["app.kubernetes.io/name", "app.kubernetes.io/instance"],
            ),
            ("tier in (a, b)", &["tier"]),
            ("tier in(a),app", &["tier", "app"]),
            ("tier notin (a,b),!old", &["tier", "old"]),
            ("tier in (,a)", &["tier"]),
            ("app", &["app"]),
            ("! app", &["app"]),
            ("app=,tier=", &["app", "tier"]),
            ("in in (in)", &["in"]),
            ("app=in", &["app"]),
        ];
        for (selector, keys) in table {
            assert_eq!(keys_of_selector(selector).as_deref(), Some(keys), "{selector}");
        }
    }

    #[test]
    fn what_the_api_server_would_refuse_is_no_selector() {
        for selector in [
            "",
            " ",
            ",",
            "app=retsu,",
            ",app=retsu",
            "app=a b",
            "app=a=b",
            "app = = a",
            "app=a,,tier=b",
            "=a",
            "!",
            "!app=a",
            "app!",
            "app in",
            "app in a",
            "app in ()",
            "app in (a",
            "app in (a b)",
            "app in ((a))",
            "app in (a))",
            "app within (a)",
            "app>1",
            "app\t=a",
            "app=a\n",
            "app=-a",
            "app=a/b",
            "App.io/x y=1",
            "app in (a,b_)",
            "app=ä",
        ] {
            assert_eq!(keys_of_selector(selector), None, "{selector}");
        }
        assert_eq!(keys_of_selector(&format!("app={}", "v".repeat(64))), None);
        assert!(keys_of_selector(&format!("app={}", "v".repeat(63))).is_some());
    }
}
