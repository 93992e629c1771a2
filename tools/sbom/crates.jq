# Of the SBOM of cargo-cyclonedx, the crates of the program. cargo-cyclonedx follows dependencies that no feature turns
# on; $tree and $linked are what Cargo itself resolves, with and without what only the compiler runs.
def crates: [splits("\n") | capture("^(?<name>\\S+) v(?<version>\\S+)") | "\(.name) \(.version)"];
def crate: "\(.name) \(.version)";

($tree | crates) as $tree | ($linked | crates) as $linked
| .components |= map(
    select(crate | IN($tree[]))
    | .scope = if crate | IN($linked[]) then "required" else "excluded" end
  )
| [.metadata.component."bom-ref", .components[]."bom-ref"] as $kept
| .dependencies |= map(select(.ref | IN($kept[])) | if .dependsOn then .dependsOn |= map(select(IN($kept[]))) else . end)
# The program is no file of this machine.
| walk(if type == "string" then sub("^path\\+file://.*#"; "pkg:cargo/") | sub("\\?download_url=file://\\."; "") else . end)
