//! A real Prometheus, of Debian's package, that scrapes one confrev each second.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use confrev_controlplane::{ControlPlane, wait_for};
use serde_json::Value;
use ureq::http::Method;

use crate::world::LIMIT;

/// The process ends when this value is dropped.
pub(super) struct Prometheus {
    cluster: &'static ControlPlane,
    child: Child,
    url: String,
}

impl Prometheus {
    pub(super) fn start(cluster: &'static ControlPlane, target: &str) -> Self {
        let folder = cluster.state_dir().join("prometheus");
        fs::create_dir_all(&folder).expect("the state folder can be written");
        let target = target.trim_start_matches("http://");
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: confrev\n  static_configs:\n  \
             - {{targets: [\"{target}\"], labels: {{instance: confrev-0}}}}\n"
        );
        fs::write(&config, text).expect("the state folder can be written");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("there is a free port").to_string();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("prometheus is installed (Debian's package `prometheus`)");
        let prometheus = Self { cluster, child, url: format!("http://{address}") };
        wait_for("Prometheus to have scraped confrev", LIMIT, || {
            let up = prometheus.get("/api/v1/query?query=up")?;
            if up["data"]["result"][0]["value"][1] == "1" { Ok(()) } else { Err(up.to_string()) }
        });
        prometheus
    }

    #[expect(clippy::unused_self, reason = "its clock is this machine's")]
    pub(super) fn now(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
    }

    /// The series of an expression over a time, as points of time and value, each with its labels.
    pub(super) fn range(&self, expression: &str, from: u64, to: u64) -> Vec<(Value, Vec<(f64, f64)>)> {
        let query = expression.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
        let path = format!("/api/v1/query_range?query={query}&start={from}&end={to}&step=1");
        let answer = self.get(&path).unwrap_or_else(|problem| panic!("{expression}: {problem}"));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let series = answer["data"]["result"].as_array().into_iter().flatten();
        let points = |series: &Value| {
            let values = series["values"].as_array().into_iter().flatten();
            let point = |value: &Value| {
                let number = value[1].as_str().and_then(|text| text.parse::<f64>().ok());
                Some((value[0].as_f64()?, number.filter(|number| number.is_finite())?))
            };
            values.filter_map(point).collect()
        };
        series.map(|series| (series["metric"].clone(), points(series))).collect()
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        match self.cluster.api().at(&self.url).send(&Method::GET, path, None) {
            Ok((200, answer)) => Ok(answer),
            Ok((code, answer)) => Err(format!("{code} {answer}")),
            Err(problem) => Err(problem),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
