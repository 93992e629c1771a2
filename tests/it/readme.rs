//! The README against the files it speaks of.

use std::path::Path;

/// The table of a document of `docs/`, which other tests hold against the code.
fn table_of(document: &str) -> String {
    let rows: Vec<_> = document.lines().filter(|line| line.starts_with('|')).collect();
    rows.join("\n")
}

#[test]
fn the_tables_are_those_of_the_generated_documents() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for document in ["docs/metrics.md", "docs/configuration.md"] {
        let (begin, end) = (format!("<!-- table of {document} -->\n\n"), "\n\n<!-- end of table -->");
        let table = table_of(&std::fs::read_to_string(root.join(document)).unwrap());
        let start = readme.find(&begin).expect("a marked place for each table") + begin.len();
        let length = readme[start..].find(end).expect("an end of each marked place");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            readme.replace_range(start..start + length, &table);
            std::fs::write(root.join("README.md"), &readme).unwrap();
        } else {
            let found = &readme[start..start + length];
            assert_eq!(found, table, "UPDATE_DOCS=1 cargo test --test it readme writes it anew");
        }
    }
}

/// The keys of Kubernetes in a document, with their defaults.
fn keys_of_kubernetes(document: &str, default: usize) -> Vec<(String, String)> {
    let cells = |row: &str| row.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect::<Vec<_>>();
    let rows = document.lines().filter(|line| line.starts_with("| `kubernetes."));
    rows.map(cells).map(|cells| (cells[0].clone(), cells[default].clone())).collect()
}

#[test]
fn the_keys_of_kubernetes_have_the_same_defaults_in_both_documents() {
    let read = |name| {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        std::fs::read_to_string(docs.join(name)).unwrap()
    };
    let generated = keys_of_kubernetes(&read("configuration.md"), 2);
    assert!(generated.len() >= 7, "{generated:?}");
    assert_eq!(keys_of_kubernetes(&read("kubernetes.md"), 1), generated);
}

#[test]
fn every_link_to_a_file_leads_to_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for document in documents.chain([root.join("README.md"), root.join("CHANGELOG.md")]) {
        let text = std::fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let outside = target.contains("://") || target.is_empty();
            let file = document.parent().unwrap().join(target);
            assert!(outside || file.exists(), "{} links to {target}", document.display());
        }
    }
}
