//! A PostgreSQL of a scenario's own, on the control plane: no fault of a worker takes it along.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::api::PostParams;
use retsu_collector::schema;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::stage::Stage;
use crate::wait::eventually;

/// The image of the servers.
pub(crate) const IMAGE: &str = "kind.local/postgresql:e2e";

/// The Secret of the chart's documentation, with the URL.
pub(crate) const SECRET: &str = "retsu-database";

/// The key of a Secret with a password.
const PASSWORD: &str = "password";

/// From the creation of the server's Pod to its first connection.
const STARTED: Duration = Duration::from_secs(90);

/// The lock of the chart's defaults.
pub(crate) const LOCK_KEY: (i32, i32) = (1_919_251_571, 1_901_294_689);

/// The queues that every scenario has.
pub(crate) const QUEUES: [&str; 3] = ["emails", "images", "reports"];

/// How the server is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    /// Sessions are ended, and a checkpoint is written.
    Fast,
    /// As after a crash.
    Immediate,
}

/// A running server with Retsu's schema and some queues.
#[derive(Clone)]
pub(crate) struct Server {
    stage: Arc<Stage>,
    name: String,
    address: IpAddr,
    password: String,
}

impl Server {
    /// Starts the server `postgresql`, with the Secret that the chart reads.
    pub(crate) async fn start(stage: &Arc<Stage>) -> Self {
        let server = Self::start_named(stage, "postgresql").await;
        server.secret(SECRET, &server.url()).await;
        server
    }

    /// Starts a server of this name, without the Secret that the chart reads.
    pub(crate) async fn start_named(stage: &Arc<Stage>, name: &str) -> Self {
        let _starting = stage.cluster.starting.lock().await;
        let password = format!("{:016x}", rand::random::<u64>());
        secret(stage, &password_secret(name), PASSWORD, &password).await;
        let container = json!({
            "name": "postgresql",
            "image": IMAGE,
            "env": [password_variable("POSTGRES_PASSWORD", name)],
            "ports": [{"containerPort": 5432}],
            "volumeMounts": [
                {"name": "data", "mountPath": "/var/lib/postgresql"},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        });
        let address = pod(stage, name, container, &["data", "tmp"]).await;
        service(stage, name, 5432).await;
        let server = Self { stage: Arc::clone(stage), name: name.to_owned(), address, password };
        eventually(STARTED, "the server takes connections", async || server.try_connect().await.is_ok()).await;
        let mut connection = server.connect().await;
        schema::apply(&mut connection).await.unwrap();
        for queue in QUEUES {
            server.execute(&add_queue(queue)).await;
        }
        server
    }

    /// The address of its Pod.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// A container's environment variable `variable` with the password of the user `postgres`.
    pub(crate) fn password_variable(&self, variable: &str) -> Value {
        password_variable(variable, &self.name)
    }

    /// What the collector connects to: the Service.
    pub(crate) fn url(&self) -> String {
        self.url_at(&format!("{}:5432", self.name))
    }

    /// The same database at another address.
    pub(crate) fn url_at(&self, address: &str) -> String {
        format!("postgres://postgres:{}@{address}/retsu", self.password)
    }

    /// Makes a Secret with a URL, as the chart's documentation does.
    pub(crate) async fn secret(&self, name: &str, url: &str) {
        secret(&self.stage, name, "url", url).await;
    }

    /// A connection of the suite's own.
    pub(crate) async fn connect(&self) -> PgConnection {
        self.try_connect().await.unwrap()
    }

    async fn try_connect(&self) -> Result<PgConnection, sqlx::Error> {
        let options = PgConnectOptions::new_without_pgpass()
            .host(&self.address.to_string())
            .username("postgres")
            .password(&self.password)
            .database("retsu");
        options.connect().await
    }

    /// Runs a statement.
    pub(crate) async fn execute(&self, sql: &str) {
        let mut connection = self.connect().await;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// The address of whoever holds the lock.
    pub(crate) async fn holder(&self) -> Option<IpAddr> {
        self.holder_of(LOCK_KEY).await
    }

    /// The same, for another lock.
    pub(crate) async fn holder_of(&self, (class, object): (i32, i32)) -> Option<IpAddr> {
        let mut connection = self.try_connect().await.ok()?;
        // In pg_locks, both halves of the key are unsigned.
        let holder: Option<String> = sqlx::query_scalar(
            "SELECT host(client_addr) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted \
             AND classid = ($1::bigint & 4294967295)::oid AND objid = ($2::bigint & 4294967295)::oid AND objsubid = 2",
        )
        .bind(i64::from(class))
        .bind(i64::from(object))
        .fetch_optional(&mut connection)
        .await
        .unwrap();
        holder.map(|address| address.parse().unwrap())
    }

    /// Ends every session of the collectors.
    pub(crate) async fn terminate_sessions(&self) {
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'retsu%'")
            .await;
    }

    /// How many sessions Pods have.
    pub(crate) async fn sessions(&self) -> i64 {
        let mut connection = self.connect().await;
        // The suite's own come from an address of the machine.
        let sql = "SELECT count(*) FROM pg_stat_activity \
            WHERE backend_type = 'client backend' AND client_addr <> inet_client_addr()";
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
    }

    /// Stops the server, and keeps its Pod and its data.
    pub(crate) async fn stop(&self, how: Stop) {
        let mode = match how {
            Stop::Fast => "fast",
            Stop::Immediate => "immediate",
        };
        self.pg_ctl(&["-w", "stop", "-m", mode]).await;
    }

    /// Starts it again.
    pub(crate) async fn resume(&self) {
        self.pg_ctl(&["-w", "-l", "/proc/1/fd/1", "start"]).await;
    }

    /// Starts it again, and calls `accepts` as soon as it takes a connection.
    pub(crate) async fn resume_and(&self, accepts: impl FnOnce()) {
        let accepted = async {
            eventually(STARTED, "the server takes connections again", async || self.try_connect().await.is_ok()).await;
            accepts();
        };
        tokio::join!(self.resume(), accepted);
    }

    /// Ends the session that holds the lock, and waits for its end.
    pub(crate) async fn terminate_holder(&self) {
        self.terminate_holder_of(LOCK_KEY).await;
    }

    /// The same, of another lock.
    pub(crate) async fn terminate_holder_of(&self, (class, object): (i32, i32)) {
        self.execute(&format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 \
             AND classid = ({class}::bigint & 4294967295)::oid AND objid = ({object}::bigint & 4294967295)::oid"
        ))
        .await;
    }

    /// Makes a role that may connect and read the queues and nothing else, and a Secret of its name with its URL.
    pub(crate) async fn reader(&self, name: &str) {
        self.execute(&format!(
            "REVOKE CONNECT ON DATABASE retsu FROM PUBLIC; CREATE ROLE {name} LOGIN PASSWORD '{}'; \
             GRANT CONNECT ON DATABASE retsu TO {name}; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
            self.password
        ))
        .await;
        self.secret(name, &format!("postgres://{name}:{}@{}:5432/retsu", self.password, self.name)).await;
    }

    async fn pg_ctl(&self, arguments: &[&str]) {
        let pg_ctl = ["/usr/lib/postgresql/15/bin/pg_ctl", "-D", "/var/lib/postgresql/data"];
        let exec = ["exec", "--namespace", &self.stage.namespace, &self.name, "--"];
        self.stage.cluster.kubectl(&[&exec[..], &pg_ctl, arguments].concat()).await;
    }
}

/// The Secret with the password of the server `name`: what is dumped when a scenario fails has no Secrets.
fn password_secret(name: &str) -> String {
    format!("{name}-password")
}

fn password_variable(variable: &str, server: &str) -> Value {
    json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": password_secret(server), "key": PASSWORD}}})
}

async fn secret(stage: &Stage, name: &str, key: &str, value: &str) {
    let secret = json!({"metadata": {"name": name}, "stringData": {key: value}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    stage.cluster.api(&stage.namespace).create(&PostParams::default(), &secret).await.unwrap();
}

/// A statement that adds a queue.
pub(crate) fn add_queue(name: &str) -> String {
    format!(
        "INSERT INTO queue (id, name, visibility_timeout_seconds, max_delivery_attempts, default_message_ttl_seconds, \
         created_at, updated_at) VALUES (gen_random_uuid(), '{name}', 30, 5, 3600, now(), now())"
    )
}

/// Makes a Pod with one container on the control plane, under the restricted standard, and waits for its address.
pub(crate) async fn pod(stage: &Stage, name: &str, mut container: Value, directories: &[&str]) -> IpAddr {
    // Without a request, it gets next to nothing of a processor that the control plane has work for.
    container["resources"] = json!({"requests": {"cpu": "50m"}});
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    });
    let volumes: Vec<_> = directories.iter().map(|name| json!({"name": name, "emptyDir": {}})).collect();
    let object = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 70,
                "runAsGroup": 70,
                "fsGroup": 70,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes,
        },
    });
    let object: Pod = serde_json::from_value(object).unwrap();
    let pods = stage.cluster.api::<Pod>(&stage.namespace);
    pods.create(&PostParams::default(), &object).await.unwrap();
    let mut address = None;
    eventually(STARTED, &format!("Pod {name} runs"), async || {
        let status = pods.get(name).await.unwrap().status.unwrap_or_default();
        let running = status.phase.as_deref() == Some("Running");
        address = status.pod_ip.filter(|_| running).and_then(|address| address.parse().ok());
        address.is_some()
    })
    .await;
    address.unwrap()
}

/// Makes the Service of a Pod.
pub(crate) async fn service(stage: &Stage, name: &str, port: u16) {
    let service = json!({
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port}]},
    });
    let service: Service = serde_json::from_value(service).unwrap();
    stage.cluster.api(&stage.namespace).create(&PostParams::default(), &service).await.unwrap();
}
