//! The API server of the tests itself.

use std::time::Duration;

use crate::support::kubernetes::ApiServer;
use crate::support::{eventually, processes_with};

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_shared_api_server_is_the_one_that_is_pinned() {
    let server = ApiServer::shared().await;
    let version = server.admin().await.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.34.4");
    assert_eq!(server.port(), ApiServer::shared().await.port());
}
