//! Where a request goes: whose host it is, and where a redirect leads.

use ureq::http::Uri;

/// Scheme, host and port: what a token belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// None for what is not a web address.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let usual = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let host = uri.host()?.to_ascii_lowercase();
        Some(Self { scheme, host, port: uri.port_u16().unwrap_or(usual) })
    }

    fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }
}

/// Where a `Location` leads from here. None if that is no web address, or one that gives up encryption.
pub(super) fn redirected(from: &Uri, location: &str) -> Option<Uri> {
    let base = Origin::of(from)?;
    let authority = from.authority()?;
    let is_absolute = location.split(['/', '?', '#']).next().is_some_and(|start| start.ends_with(':'));
    let text = if is_absolute {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{}:{location}", base.scheme)
    } else if location.starts_with('/') {
        format!("{}://{authority}{location}", base.scheme)
    } else if location.starts_with('?') {
        format!("{}://{authority}{}{location}", base.scheme, from.path())
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{}://{authority}{folder}/{location}", base.scheme)
    };
    let to: Uri = text.parse().ok()?;
    let target = Origin::of(&to)?;
    (target.is_encrypted() || !base.is_encrypted()).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Option<Origin> {
        Origin::of(&text.parse().unwrap())
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://hub"), origin("https://HUB:443/x?y"));
        for other in
            ["http://hub", "https://hub:8443", "https://hub.evil", "https://hub@evil", "https://evil/hub"]
        {
            assert_ne!(origin("https://hub"), origin(other), "{other}");
        }
        assert_eq!(origin("ftp://hub/x"), None);
        assert_eq!(origin("/x"), None);
    }

    #[test]
    fn a_relative_location_stays_on_its_host() {
        let cases = [
            ("/b/c?d=e", Some("https://hub:1/b/c?d=e")),
            ("c", Some("https://hub:1/x/c")),
            ("?d", Some("https://hub:1/x/y?d")),
            ("//other/c", Some("https://other/c")),
            ("https://other/c", Some("https://other/c")),
            ("http://other/c", None),
            ("ftp://other/c", None),
            ("file:///etc/passwd", None),
            ("https://", None),
        ];
        let from: Uri = "https://hub:1/x/y?z".parse().unwrap();
        for (location, to) in cases {
            assert_eq!(redirected(&from, location), to.map(|to| to.parse().unwrap()), "{location}");
        }
    }
}
