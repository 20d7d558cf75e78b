//! The routes of the server. Every request passes the guard first, and every answer has the same headers.

use std::{net::Ipv4Addr, sync::Arc};

use axum::{
    Form, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    middleware::{self, Next},
    response::{Html, IntoResponse as _, Response},
    routing::{get, post},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use maud::html;
use tokio::net::TcpListener;

use super::{
    action::{self, Asked},
    assets,
    guard::{Guard, GuardAnswer},
    layout::{self, Live, Page},
    links::Links,
    live,
    model::{Model, View},
    overview::{self, Filter},
    settings::Settings,
    source::{self, Compared},
    workload,
};
use crate::{
    cli::{failure::Failure, flags::DryRun, objects::source_kind},
    snapshot::{ObjectName, is_namespace_name, is_object_name},
};

/// The most bytes of a form.
const MAX_FORM: usize = 16 << 10;
/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 9] = [
    (header::CONTENT_SECURITY_POLICY, layout::POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// What all routes share.
pub(super) struct Server {
    /// The state.
    pub(super) model: Arc<Model>,
    /// The settings.
    pub(super) settings: Settings,
}

/// A free port on loopback, or the given one.
pub(super) async fn listen(port: u16) -> Result<TcpListener, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| Failure::Usage(format!("cannot listen on 127.0.0.1:{port}: {error}")))
}

/// The routes, behind the guard.
pub(super) fn routes(server: Server, guard: Guard) -> Router {
    let (read_only, links) = (server.settings.read_only, server.settings.links());
    let mut router = Router::new()
        .route(&links.at(""), get(show_overview))
        .route(&links.at("workloads/{namespace}/{kind}/{name}"), get(show_workload))
        .route(&links.at("sources/{namespace}/{kind}/{name}"), get(show_source))
        .route(&links.at("live/{form}"), get(show_live))
        .route(&links.at("assets/{name}"), get(show_asset));
    if !read_only {
        router = router
            .route(&links.at(action::PREVIEW), post(preview))
            .route(&links.at(action::MAKE), post(make));
    }
    router
        .fallback(move || async move {
            problem(links, StatusCode::NOT_FOUND, "Not found", "The page does not exist.")
        })
        .method_not_allowed_fallback(move || async move {
            let message = "The page does not answer this method.";
            problem(links, StatusCode::METHOD_NOT_ALLOWED, "Not possible", message)
        })
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(middleware::from_fn_with_state(Arc::new(guard), guarded))
        .with_state(Arc::new(server))
}

async fn guarded(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.judge(request.method(), request.uri(), request.headers()) {
        GuardAnswer::Pass => next.run(request).await,
        GuardAnswer::Enter { cookie, to } => {
            (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, to)]).into_response()
        }
        GuardAnswer::Reject(status, message) => (status, message).into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn problem(links: Links, status: StatusCode, title: &str, message: &str) -> Response {
    (status, Html(layout::problem(links, title, message))).into_response()
}

fn failed(links: Links, failure: &Failure) -> Response {
    let status = match failure {
        Failure::NotFound(_) => StatusCode::NOT_FOUND,
        Failure::Usage(_) => StatusCode::BAD_REQUEST,
        Failure::Refused(_) => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_GATEWAY,
    };
    problem(links, status, "Not possible", &failure.to_string())
}

impl Server {
    /// A page of a state that has the update with this number.
    fn answer(&self, page: Result<Page<'_>, Failure>, version: u64) -> Response {
        match page {
            Ok(page) => Html(page.render_at(self.links(), &self.settings.about, version)).into_response(),
            Err(failure) => failed(self.links(), &failure),
        }
    }

    fn links(&self) -> Links {
        self.settings.links()
    }

    /// The view of a namespace, after the first list, and the number of the last update that it has.
    async fn view(&self, namespace: &str) -> Result<(Arc<View>, u64), Failure> {
        if !is_namespace_name(namespace) {
            return Err(Failure::Usage(format!("invalid namespace {namespace:?}")));
        }
        self.model.ready().await;
        let version = self.model.version();
        Ok((self.model.view(namespace).unwrap_or_default(), version))
    }
}

async fn show_overview(State(server): State<Arc<Server>>, Query(filter): Query<Filter>) -> Response {
    server.model.ready().await;
    let version = server.model.version();
    let views = server.model.views();
    server.answer(Ok(overview::page(&views, &filter, &server.model.unread(), server.links())), version)
}

/// Runs a page beside the other tasks of the runtime. The futures of the commands are made for one thread, and the routes need
/// futures that can move between threads.
async fn apart<F: Future<Output = Response>>(
    links: Links,
    page: impl FnOnce() -> F + Send + 'static,
) -> Response {
    let runtime = tokio::runtime::Handle::current();
    let answer = tokio::task::spawn_blocking(move || runtime.block_on(page())).await;
    answer.unwrap_or_else(|_| {
        let message = "The page failed, which is a bug in confrev.";
        problem(links, StatusCode::INTERNAL_SERVER_ERROR, "Failed", message)
    })
}

type ObjectPath = Path<(String, String, String)>;

async fn show_workload(
    State(server): State<Arc<Server>>,
    Path((namespace, kind, name)): ObjectPath,
) -> Response {
    apart(server.links(), move || async move {
        let (view, version) = match server.view(&namespace).await {
            Ok(found) => found,
            Err(failure) => return failed(server.links(), &failure),
        };
        let target = server.model.target_in(&namespace);
        let found = match view.inventory.find(&target, &format!("{kind}/{name}")) {
            Ok(found) => found,
            Err(failure) => return failed(server.links(), &failure),
        };
        let title = found.reference();
        let page = workload::page(&target, &view, found, &title, &server.settings, server.links()).await;
        server.answer(page, version)
    })
    .await
}

async fn show_source(
    State(server): State<Arc<Server>>,
    Path((namespace, kind, name)): ObjectPath,
    Query(compared): Query<Compared>,
) -> Response {
    apart(server.links(), move || async move {
        let (view, version) = match server.view(&namespace).await {
            Ok(found) => found,
            Err(failure) => return failed(server.links(), &failure),
        };
        let Some(kind) = source_kind(&kind).filter(|_| is_object_name(&name)) else {
            let message = format!("{kind}/{name} is not the name of a ConfigMap or Secret");
            return failed(server.links(), &Failure::NotFound(message));
        };
        let (target, source) = (server.model.target_in(&namespace), ObjectName::new(kind, name));
        let title = format!("{}/{}", source.kind.as_str(), source.name);
        let page = source::page(
            &target,
            &view.inventory,
            &source,
            &title,
            &compared,
            &server.settings,
            server.links(),
        )
        .await;
        server.answer(page, version)
    })
    .await
}

async fn show_live(State(server): State<Arc<Server>>, Path(form): Path<String>) -> Response {
    live::stream(Arc::clone(&server.model), form == "rows")
}

async fn show_asset(Path(name): Path<String>) -> Response {
    match assets::asset(&name) {
        Some(asset) => ([(header::CONTENT_TYPE, asset.kind)], asset.text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

impl Server {
    /// Tries an action whose form is genuine.
    async fn tried(&self, asked: &Asked) -> Result<action::ActionResult, Response> {
        let form = self.settings.guard.as_ref().map(Guard::form);
        if !form.is_some_and(|form| form.is(&asked.form)) {
            return Err(problem(
                self.links(),
                StatusCode::FORBIDDEN,
                "Not possible",
                "The form is not of this page: load the page again.",
            ));
        }
        if !is_namespace_name(&asked.namespace) {
            let message = format!("invalid namespace {:?}", asked.namespace);
            return Err(failed(self.links(), &Failure::Usage(message)));
        }
        let target = self.model.target_in(&asked.namespace);
        asked
            .make(&target, DryRun::Server, &self.settings)
            .await
            .map_err(|failure| self.failed_action(asked, &failure))
    }

    fn failed_action(&self, asked: &Asked, failure: &Failure) -> Response {
        let title = asked.title();
        let body = html! {
            p.problem role="alert" { (failure) }
            p { a href=(asked.object_page(self.links())) { "Back" } }
        };
        let page = Page { title: &title, namespace: "", above: Vec::new(), live: Live::Still, body };
        let text = page.render(self.links(), &self.settings.about);
        (StatusCode::CONFLICT, Html(text)).into_response()
    }

    fn preview(&self, asked: &Asked, outcome: &action::ActionResult, is_changed: bool) -> Response {
        let title = asked.title();
        let body = action::preview(asked, outcome, is_changed, &self.settings);
        let page = Page { title: &title, namespace: "", above: Vec::new(), live: Live::Still, body };
        // A preview stays as it is: the user confirms what it shows.
        Html(page.render(self.links(), &self.settings.about)).into_response()
    }
}

async fn preview(State(server): State<Arc<Server>>, Form(asked): Form<Asked>) -> Response {
    apart(server.links(), move || async move {
        match server.tried(&asked).await {
            Ok(outcome) => server.preview(&asked, &outcome, false),
            Err(response) => response,
        }
    })
    .await
}

async fn make(State(server): State<Arc<Server>>, Form(asked): Form<Asked>) -> Response {
    apart(server.links(), move || async move {
        let tried = match server.tried(&asked).await {
            Ok(tried) => tried,
            Err(response) => return response,
        };
        if tried.fingerprint() != asked.confirmed {
            return server.preview(&asked, &tried, true);
        }
        let target = server.model.target_in(&asked.namespace);
        match asked.make(&target, DryRun::None, &server.settings).await {
            Ok(_) => (StatusCode::SEE_OTHER, [(header::LOCATION, asked.object_page(server.links()))])
                .into_response(),
            Err(failure) => server.failed_action(&asked, &failure),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Method;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;
    use crate::cli::{
        dashboard::rights::Rights,
        objects::Scope,
        target::{Flags, Target},
    };

    const HOST: &str = "127.0.0.1:4000";

    /// The page of a cluster that does not answer.
    struct Served {
        routes: Router,
        guard: Guard,
        cookie: String,
    }

    impl Served {
        async fn new(read_only: bool) -> Self {
            let flags = Flags {
                server: Some("http://127.0.0.1:9".to_owned()),
                kubeconfig: Some("/dev/null".into()),
                namespace: Some("shop".to_owned()),
                ..Flags::default()
            };
            let own = format!("{}-{:?}-{read_only}", std::process::id(), std::thread::current().id());
            let folder = std::env::temp_dir().join(format!("confrev-dashboard-{own}"));
            std::fs::create_dir_all(&folder).unwrap();
            let file = folder.join("config");
            let config = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "a",
                "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "a", "user": {}}], "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}"#;
            std::fs::write(&file, config).unwrap();
            let target = Target::find(&Flags { kubeconfig: Some(file), ..flags }).await.unwrap();
            std::fs::remove_dir_all(&folder).unwrap();
            let guard = Guard::new(4000).unwrap();
            let model = Arc::new(Model::new(target, Scope::Namespace("shop".to_owned()), guard.links()));
            model.listed();
            let shown = Arc::clone(&model);
            tokio::spawn(async move { shown.show_changes().await });
            let settings = Settings {
                show_values: false,
                read_only,
                guard: Some(guard.clone()),
                rights: Rights::default(),
                about: String::new(),
            };
            let routes = routes(Server { model, settings }, guard.clone());
            let mut served = Self { routes, guard, cookie: String::new() };
            let address = served.guard.address().replace("http://127.0.0.1:4000", "");
            let address = address.strip_prefix(&served.guard.links().overview()).unwrap();
            let (status, headers, _) = served.ask(Method::GET, address, &[], "").await;
            let to = served.guard.links().overview();
            assert_eq!((status, headers[header::LOCATION].to_str().unwrap()), (303, to.as_str()));
            served.cookie =
                headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
            served
        }

        async fn ask(
            &self,
            method: Method,
            path: &str,
            headers: &[(&str, &str)],
            body: &str,
        ) -> (u16, http::HeaderMap, String) {
            let uri = self.guard.links().at(path.trim_start_matches('/'));
            let mut request = http::Request::builder().method(method).uri(uri).header("host", HOST);
            if !self.cookie.is_empty() {
                request = request.header("cookie", &self.cookie);
            }
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(Body::from(body.to_owned())).unwrap();
            let response = self.routes.clone().oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            (parts.status.as_u16(), parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
        }

        async fn post(&self, path: &str, origin: &str, form: &str) -> (u16, String) {
            let headers = [("origin", origin), ("content-type", "application/x-www-form-urlencoded")];
            let (status, _, text) = self.ask(Method::POST, path, &headers, form).await;
            (status, text)
        }
    }

    #[tokio::test]
    async fn every_answer_has_strict_headers() {
        let served = Served::new(false).await;
        for path in ["/", "/assets/page.js", "/none", "/?token=wrong", "/sources/shop/pod/x"] {
            let (_, headers, _) = served.ask(Method::GET, path, &[], "").await;
            for (name, value) in HEADERS {
                assert_eq!(headers[&name], value, "{path} {name}");
            }
            assert!(!headers.contains_key("access-control-allow-origin"), "{path}");
        }
    }

    #[tokio::test]
    async fn nothing_is_served_without_session() {
        let mut served = Served::new(false).await;
        assert_eq!(served.ask(Method::GET, "/", &[], "").await.0, 200);
        served.cookie.clear();
        for path in ["/", "/assets/page.js", "/live/rows", "/workloads/shop/deployment/web", "/none"] {
            let (status, _, text) = served.ask(Method::GET, path, &[], "").await;
            assert_eq!(status, 401, "{path}");
            assert!(!text.contains("shop"), "{path}: {text}");
        }
        let origin = "http://127.0.0.1:4000";
        let form = format!("form={}&action=undo", served.guard.form().text());
        assert_eq!(served.post(action::MAKE, origin, &form).await.0, 401);
    }

    /// The secret of the forms is checked before anything is sent to the cluster.
    #[tokio::test]
    async fn forged_forms_are_rejected() {
        let (served, other) = (Served::new(false).await, Served::new(true).await);
        let origin = "http://127.0.0.1:4000";
        let fields = "action=undo&namespace=shop&workload=deployment/web";
        for path in [action::PREVIEW, action::MAKE] {
            for wrong in ["", "x", other.guard.form().text(), "%00"] {
                let (status, text) = served.post(path, origin, &format!("form={wrong}&{fields}")).await;
                assert_eq!(status, 403, "{path} {wrong}");
                assert!(text.contains("The form is not of this page"), "{text}");
            }
            let genuine = format!("form={}&{fields}", served.guard.form().text());
            assert_eq!(served.post(path, "http://evil.example", &genuine).await.0, 403);
            assert_eq!(served.ask(Method::GET, &format!("{path}?{genuine}"), &[], "").await.0, 405, "{path}");
            let (status, text) = served.post(path, origin, &genuine).await;
            assert_eq!(status, 409, "{path}");
            assert!(text.contains("does not answer"), "the form passes, and the cluster is asked: {text}");
            let (status, _) = served.post(path, origin, &"x".repeat(MAX_FORM + 1)).await;
            assert_eq!(status, 413, "{path}");
        }
    }

    #[tokio::test]
    async fn read_only_page_has_no_actions() {
        let served = Served::new(true).await;
        let form = format!("form={}&action=undo&namespace=shop", served.guard.form().text());
        for path in [action::PREVIEW, action::MAKE] {
            assert_eq!(served.post(path, "http://127.0.0.1:4000", &form).await.0, 404, "{path}");
        }
    }

    #[tokio::test]
    async fn hostile_paths_are_escaped() {
        let served = Served::new(false).await;
        for path in [
            "/workloads/shop/deployment/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
            "/workloads/%3Cimg%20src%3Dx%3E/deployment/web",
            "/sources/shop/%3Cb%3E/x",
            "/sources/shop/configmap/..%2F..%2Fsecrets",
            "/?words=%22%3E%3Cscript%3E&state=%3Cb%3E",
        ] {
            let (_, _, text) = served.ask(Method::GET, path, &[], "").await;
            assert!(
                !text.contains("<script>") && !text.contains("<img") && !text.contains("<b>E"),
                "{path}: {text}"
            );
        }
    }
}
