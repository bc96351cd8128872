//! Requests to a hub.
//!
//! Redirects are followed here and not by the library below: the token goes to the hub's own scheme, host and port
//! and nowhere else. What an answer says about a file is checked before anything is made of it.

use super::address::{Origin, redirected};
use super::located::Located;
use super::name::is_plain;
use super::{Hub, HubError, HubName};
use std::time::Duration;
use ureq::http::header::{AUTHORIZATION, LOCATION, RANGE};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body};

const CONNECT: Duration = Duration::from_secs(15);
/// Without a byte.
const SILENCE: Duration = Duration::from_secs(60);
const LISTING: Duration = Duration::from_secs(120);
const LISTING_BYTES: u64 = 16 << 20;
const REDIRECTS: usize = 10;

pub(super) struct Client {
    agent: Agent,
    name: HubName,
    endpoint: String,
    origin: Origin,
    token: Option<String>,
}

/// The files of one commit.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

pub(super) struct Answer {
    pub(super) response: Response<Body>,
    /// Whether it is the hub itself that answers.
    is_own: bool,
}

/// What is wanted of an address.
#[derive(Clone, Copy)]
struct Wish<'a> {
    range: Option<&'a str>,
    /// For the whole body. A file has none: it may be long, and its length ends it.
    limit: Option<Duration>,
}

impl Client {
    pub(super) fn new(hub: &Hub, name: &HubName) -> Result<Self, HubError> {
        let endpoint = hub.endpoint.clone();
        let origin = endpoint.parse().ok().and_then(|uri| Origin::of(&uri));
        let Some(origin) = origin else {
            return Err(HubError::Strange { endpoint, source: "that is no web address".into() });
        };
        let config = Agent::config_builder()
            .user_agent(concat!("octavo/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_send_request(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Ok(Self { agent: config.into(), name: name.clone(), endpoint, origin, token: hub.token() })
    }

    pub(super) fn list(&self, revision: &str) -> Result<Listing, HubError> {
        let revision = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, self.name.repo());
        let mut answer = self.walk(&url, Wish { range: None, limit: Some(LISTING) }, &mut |_| Ok(false))?;
        self.expect(&answer, &[200])?;
        let body = answer.response.body_mut().with_config().limit(LISTING_BYTES).read_to_vec();
        let body = body.map_err(|error| self.failed(error))?;
        let value: serde_json::Value = serde_json::from_slice(&body).map_err(|error| self.strange(error))?;
        let commit = value["sha"].as_str().unwrap_or_default().to_owned();
        if !is_plain(&commit) {
            return Err(self.strange(format!("`{commit}` is no commit")));
        }
        let files = value["siblings"].as_array().into_iter().flatten();
        let files = files.filter_map(|file| Some(file["rfilename"].as_str()?.to_owned())).collect();
        Ok(Listing { commit, files })
    }

    /// What a file is called in the cache, and how long it is.
    pub(super) fn locate(&self, commit: &str, file: &str) -> Result<Located, HubError> {
        let mut linked = None;
        let first = Wish { range: Some("bytes=0-0"), limit: None };
        let answer = self.walk(&self.url(commit, file), first, &mut |headers| {
            self.check_commit(headers, commit)?;
            linked = linked.take().or(Located::linked(headers).map_err(|error| self.strange(error))?);
            Ok(linked.as_ref().is_some_and(Located::is_complete))
        })?;
        let located = match linked {
            Some(located) if located.is_complete() => located,
            linked => {
                self.expect(&answer, &[200, 206, 416])?;
                Located::of_answer(linked, &answer.response).map_err(|error| self.strange(error))?
            }
        };
        Ok(located)
    }

    /// A file from one of its bytes on. Which bytes come is in the answer.
    pub(super) fn open(&self, commit: &str, file: &str, from: u64) -> Result<Answer, HubError> {
        let range = format!("bytes={from}-");
        let rest = Wish { range: (from > 0).then_some(range.as_str()), limit: None };
        let answer = self.walk(&self.url(commit, file), rest, &mut |headers| {
            self.check_commit(headers, commit).map(|()| false)
        })?;
        self.expect(&answer, &[200, 206, 416])?;
        Ok(answer)
    }

    pub(super) fn strange(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HubError {
        HubError::Strange { endpoint: self.endpoint.clone(), source: source.into() }
    }

    fn url(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.endpoint, self.name.repo())
    }

    /// Follows redirects to the end, or until one says enough.
    fn walk(
        &self,
        url: &str,
        wish: Wish<'_>,
        is_enough: &mut dyn FnMut(&HeaderMap) -> Result<bool, HubError>,
    ) -> Result<Answer, HubError> {
        let mut uri: Uri = url.parse().map_err(|error| self.strange(error))?;
        for _ in 0..=REDIRECTS {
            let is_own = Origin::of(&uri).as_ref() == Some(&self.origin);
            let response = self.ask(&uri, wish, is_own)?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            if is_enough(response.headers())? || !is_redirect {
                return Ok(Answer { response, is_own });
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let location = location.ok_or_else(|| self.strange("a redirect without a location"))?;
            uri = redirected(&uri, location)
                .ok_or_else(|| self.strange(format!("a redirect to `{location}`")))?;
        }
        Err(self.strange(format!("more than {REDIRECTS} redirects")))
    }

    fn ask(&self, uri: &Uri, wish: Wish<'_>, is_own: bool) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(uri);
        if let Some(range) = wish.range {
            request = request.header(RANGE, range);
        }
        if let Some(token) = self.token.as_ref().filter(|_| is_own) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.config().timeout_recv_body(wish.limit).build();
        request.call().map_err(|error| self.failed(error))
    }

    fn check_commit(&self, headers: &HeaderMap, want: &str) -> Result<(), HubError> {
        match headers.get("x-repo-commit") {
            Some(commit) if commit != want => {
                Err(self.strange(format!("a file of commit {commit:?} instead of {want}")))
            }
            _ => Ok(()),
        }
    }

    fn expect(&self, answer: &Answer, wanted: &[u16]) -> Result<(), HubError> {
        let (name, endpoint) = (self.name.clone(), self.endpoint.clone());
        match answer.response.status().as_u16() {
            status if wanted.contains(&status) => Ok(()),
            401 if answer.is_own && self.token.is_some() => Err(HubError::BadToken { name, endpoint }),
            401 if answer.is_own => Err(HubError::Unauthorized { name, endpoint }),
            403 if answer.is_own => Err(HubError::Forbidden { name, endpoint }),
            404 if answer.is_own => Err(HubError::NotFound { name, endpoint }),
            status => Err(HubError::Status { name, endpoint, status }),
        }
    }

    fn failed(&self, error: ureq::Error) -> HubError {
        use ureq::Error::{BadUri, BodyExceedsLimit, Http, LargeResponseHeader, Protocol};
        match error {
            BadUri(_) | BodyExceedsLimit(_) | Http(_) | LargeResponseHeader(..) | Protocol(_) => {
                self.strange(error)
            }
            error => HubError::Unreachable {
                name: self.name.clone(),
                endpoint: self.endpoint.clone(),
                source: error.into(),
            },
        }
    }
}
