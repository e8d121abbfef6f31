//! How a command fails: what failed, why, what to do about it, and the exit code a script can tell cases apart by.

use std::process::ExitCode;

/// Kinds of failure, each with its exit code. `args.rs` documents them for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// None of the others.
    Failed = 1,
    /// The command line, or a value in it, is wrong.
    Usage = 2,
    /// No such thing.
    NotFound = 3,
    /// In use, or other than asked.
    Conflict = 4,
    /// Nobody answers just now.
    Unavailable = 5,
    /// Space or devices are short.
    NoSpace = 6,
}

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    error: anyhow::Error,
    fix: Option<String>,
}

impl Failure {
    /// A failure of this kind; `error` carries the cause chain.
    pub(crate) fn new(kind: Kind, error: impl Into<anyhow::Error>) -> Self {
        Failure { kind, error: error.into(), fix: None }
    }

    /// What kind it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Says what was tried.
    #[must_use]
    pub(crate) fn context(self, what: impl std::fmt::Display + Send + Sync + 'static) -> Self {
        Failure { error: self.error.context(what), ..self }
    }

    /// Says what to do about it.
    #[must_use]
    pub(crate) fn fix(self, fix: impl Into<String>) -> Self {
        Failure { fix: Some(fix.into()), ..self }
    }

    /// The text for people: what failed, each cause on its own line, the fix last.
    pub(crate) fn text(&self) -> String {
        let mut causes = self.error.chain().map(ToString::to_string);
        let mut text = format!("error: {}", causes.next().unwrap_or_default());
        for cause in causes {
            text.push_str("\n  because: ");
            text.push_str(&cause);
        }
        if let Some(fix) = &self.fix {
            text.push_str("\n  fix: ");
            text.push_str(fix);
        }
        text
    }

    /// Prints the text to stderr.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("{}", self.text());
        ExitCode::from(self.kind as u8)
    }
}

impl From<api_types::master::Error> for Failure {
    fn from(error: api_types::master::Error) -> Self {
        use api_types::master::Error;
        let (kind, fix) = match &error {
            Error::Unavailable(_) => (Kind::Unavailable, Some("see whether the masters run: their logs say why none leads")),
            Error::NotFound { .. } => (Kind::NotFound, None),
            Error::Fenced { .. } | Error::Conflict(_) => (Kind::Conflict, None),
            Error::NoSpace(_) => (Kind::NoSpace, Some("add devices, or delete volumes; `basalt status` shows what is left")),
            Error::Invalid(_) => (Kind::Usage, None),
        };
        Failure { kind, error: error.into(), fix: fix.map(str::to_owned) }
    }
}

/// What the agent says over its socket.
impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        let kind = match status.code() {
            tonic::Code::NotFound => Kind::NotFound,
            tonic::Code::FailedPrecondition | tonic::Code::AlreadyExists | tonic::Code::Aborted => Kind::Conflict,
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => Kind::Unavailable,
            tonic::Code::ResourceExhausted => Kind::NoSpace,
            tonic::Code::InvalidArgument | tonic::Code::OutOfRange => Kind::Usage,
            _ => Kind::Failed,
        };
        Failure::new(kind, anyhow::anyhow!("{}", status.message().to_owned()))
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Failure>() {
            Ok(failure) => failure,
            Err(error) => Failure::new(Kind::Failed, error),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_causes_in_order_and_the_fix() {
        let error = anyhow::anyhow!("connection refused").context("could not ask 127.0.0.1:1");
        let failure = Failure::new(Kind::Unavailable, error).context("could not list volumes").fix("start a master");
        let expected = "error: could not list volumes\n  because: could not ask 127.0.0.1:1\n  because: connection refused\n  \
                        fix: start a master";
        assert_eq!(failure.text(), expected);
    }

    #[test]
    fn a_failure_keeps_its_kind_on_its_way_through_anyhow() {
        let failure = Failure::new(Kind::NoSpace, anyhow::anyhow!("full"));
        assert_eq!(Failure::from(anyhow::Error::from(failure)).kind, Kind::NoSpace);
    }
}
