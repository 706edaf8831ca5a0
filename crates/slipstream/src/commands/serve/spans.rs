//! Spans of requests for OpenTelemetry's collectors, where the program was built with them.

use crate::failure::Failure;
use server::record::Recorder;
use std::env;
use std::sync::Arc;

const OPTION: &str = "--otlp-endpoint";
const VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Sends spans; of no size where there are none.
pub(super) struct Spans {
    #[cfg(feature = "otel")]
    telemetry: Option<telemetry::Telemetry>,
}

/// The collector that was named, and by what: the option, or the variable that the standard has.
fn endpoint(option: Option<&str>, variable: Option<String>) -> Option<(&'static str, String)> {
    let variable = variable.filter(|endpoint| !endpoint.is_empty());
    let option = option.map(|endpoint| (OPTION, endpoint.to_owned()));
    option.or(variable.map(|endpoint| (VARIABLE, endpoint)))
}

impl Spans {
    /// To the collector at the option's address, or the variable's; to none when neither names one.
    pub(super) fn start(option: Option<&str>) -> Result<Spans, Failure> {
        Spans::to(endpoint(option, env::var(VARIABLE).ok()))
    }

    #[cfg(feature = "otel")]
    fn to(endpoint: Option<(&'static str, String)>) -> Result<Spans, Failure> {
        let Some((named_by, endpoint)) = endpoint else { return Ok(Spans { telemetry: None }) };
        let telemetry = telemetry::Telemetry::start(&telemetry::Options::new(endpoint));
        let telemetry = telemetry.map_err(|error| Failure::input(format!("{named_by} {error}")))?;
        Ok(Spans { telemetry: Some(telemetry) })
    }

    #[cfg(not(feature = "otel"))]
    fn to(endpoint: Option<(&'static str, String)>) -> Result<Spans, Failure> {
        match endpoint {
            None => Ok(Spans {}),
            Some((named_by, endpoint)) => Err(Failure::input(format!(
                "{named_by} {endpoint}: this program was built without OpenTelemetry; build it with \
                 `cargo build --release --features otel`, or name no collector"
            ))),
        }
    }

    /// What the server's configuration takes.
    #[cfg(feature = "otel")]
    pub(super) fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        self.telemetry.as_ref().map(telemetry::Telemetry::recorder)
    }

    /// What the server's configuration takes.
    #[cfg(not(feature = "otel"))]
    pub(super) fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        None
    }

    /// Sends what waits.
    pub(super) fn end(self) {
        #[cfg(feature = "otel")]
        if let Some(telemetry) = self.telemetry {
            telemetry.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_comes_before_the_variable() {
        let named = |option, variable: &str| endpoint(option, Some(variable.to_owned()));
        assert_eq!(named(Some("http://a"), "http://b"), Some((OPTION, "http://a".into())));
        assert_eq!(named(None, "http://b"), Some((VARIABLE, "http://b".into())));
        assert_eq!(named(None, ""), None);
        assert_eq!(endpoint(None, None), None);
    }
}
